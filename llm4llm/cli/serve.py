"""serve: the API on a socket, until a signal drains it."""

import asyncio
import gc
import ipaddress
import logging
import resource
import signal
import socket
from dataclasses import dataclass
from types import FrameType

import uvicorn

from llm4llm.api.app import create_app
from llm4llm.api.context import make_context
from llm4llm.api.protocol import Protocol
from llm4llm.api.watch import Watch
from llm4llm.cli import say
from llm4llm.cli.embedded import embedded_workers
from llm4llm.cli.opened import settings_with_home
from llm4llm.errors import BadArguments
from llm4llm.kit import SystemClock, counted, set_up_logs
from llm4llm.sandbox.isolation import isolation
from llm4llm.settings import Settings
from llm4llm.store import open_store

_DRAIN_S = 20  # what an answer that has begun may still take
_BACKLOG = 512
_MOST_CONNECTIONS, _FEWEST_CONNECTIONS = 2_000, 16
_OTHER_FILES = 224  # a hundred of them for connections that are being refused
_WEAKEST = "limits-only"


@dataclass(frozen=True)
class Serving:
    """What the user typed."""

    host: str
    port: int
    workers: int
    require_keys: bool = False
    without_isolation: bool = False


def serve(options: Serving) -> int:
    """Exit code 0 after a drained end. BadArguments for a bind that would be open to strangers, or that can't be had."""
    settings = settings_with_home()
    keys_required = options.require_keys or settings.require_keys
    level = isolation().level
    _check_bind(options, keys_required, level)
    set_up_logs(False, settings.log_level)
    # what is wrong with a body is told to whoever sent it
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    store = open_store(settings.database, settings.blobs)
    try:
        context = make_context(settings, store, SystemClock(), keys_required, level)
        with _bound(options) as listening:
            notices = _notices(settings, keys_required, level, options.workers)
            server = _Server(_config(context_app=create_app(context)), context.watch, notices)
            with embedded_workers(options.workers):
                server.run(sockets=[listening])
    finally:
        store.close()
    return say.EXIT_OK if server.started else say.EXIT_FAILED


class _Server(uvicorn.Server):
    """Ends with exit code 0 on a signal, after its streams were closed; a second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, watch: Watch, notices: tuple[str, ...]) -> None:
        super().__init__(config)
        self._watch = watch
        self._notices = notices
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        # what was imported is never garbage: a full collection that walks all of it stops every answer for a tenth of a second
        gc.freeze()
        if self.started and sockets:
            for notice in self._notices:
                say.note(notice)
            host, port = sockets[0].getsockname()[:2]
            say.note(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
            return
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._watch.close)
        say.note(f"{signal.Signals(sig).name}: finishing what has begun")


def _config(context_app: object) -> uvicorn.Config:
    return uvicorn.Config(
        context_app,  # type: ignore[arg-type]
        http=Protocol,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        limit_concurrency=_most_connections(),
        timeout_graceful_shutdown=_DRAIN_S,
    )


def _most_connections() -> int:
    """As many as there are file descriptors for, besides those for files, the database and pipes."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(_FEWEST_CONNECTIONS, min(_MOST_CONNECTIONS, files - _OTHER_FILES))


def _check_bind(options: Serving, keys_required: bool, level: str) -> None:
    if _is_loopback(options.host):
        return
    if not keys_required:
        fix = "make a key with llm4llm keys create NAME, and start with --require-keys"
        raise BadArguments(f"whoever reaches {options.host} could run code here, because no API keys are required", fix)
    # a process without workers runs nobody's code
    if options.workers and level == _WEAKEST and not options.without_isolation:
        fix = "see llm4llm doctor, or accept it with --without-isolation"
        raise BadArguments(f"{options.host} is open to others, and this machine gives children no isolation", fix)


def _notices(settings: Settings, keys_required: bool, level: str, workers: int) -> tuple[str, ...]:
    keys = (
        "API keys are required" if keys_required else "API keys are off: every program on this machine may submit jobs and read all of them"
    )
    runs = counted(workers, "embedded worker") if workers else "no worker runs here: jobs wait for a llm4llm worker"
    return keys, runs, f"jobs and files lie in {settings.home}; isolation of children: {level}"


def _bound(options: Serving) -> socket.socket:
    """A listening socket; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((options.host, options.port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        why = error.strerror or str(error)
        raise BadArguments(
            f"{options.host} port {options.port} can't be had ({why})", "give another --port, or end what uses it"
        ) from error
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
