"""What every request passes first: who may talk to a server without keys, the log line, the figures."""

import ipaddress
import logging
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llm4llm.api.metrics import Metrics
from llm4llm.api.problems import HeadersTooLarge, of_error
from llm4llm.errors import CrossOrigin

_OPEN = ("/healthz", "/readyz")
_MOST_HEADERS = 200
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
log = logging.getLogger("llm4llm.api")


class Front:
    """ASGI middleware.

    Without keys a server listens on loopback only, and still a browser on the same machine could be made to talk to it by any web page
    (a form needs no permission, and a host name may be pointed at 127.0.0.1). Such requests carry a foreign Host or Origin.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, keys_required: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._keys_required = keys_required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        # routes know GET alone; a HEAD is answered with its head, and the server leaves out the body
        head = scope["method"] == "HEAD"
        scope = {**scope, "method": "GET"} if head else scope
        ended = False

        async def noted(message: Message) -> None:
            nonlocal ended
            if ended:
                return
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
                self._note("HEAD" if head else scope["method"], scope, message["status"], time.perf_counter() - began)
            await send(message)
            if head:
                ended = True  # a stream would go on for long
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        if len(scope["headers"]) > _MOST_HEADERS:
            await of_error(HeadersTooLarge(f"there are more than {_MOST_HEADERS} headers"))(scope, receive, noted)
            return
        foreign = None if self._keys_required or scope["path"] in _OPEN else _foreign(Headers(scope=scope))
        if foreign is not None:
            await of_error(CrossOrigin(foreign))(scope, receive, noted)
            return
        await self._app(scope, receive, noted)

    def _note(self, method: str, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        method = method if method in _METHODS else "other"
        self._metrics.answered(method, route, status, seconds)
        log.info("%s %s %d %.1f ms", method, scope["path"][:200], status, 1e3 * seconds)


def _foreign(headers: Headers) -> str | None:
    """What shows that a web page of another site is behind a request."""
    host = headers.get("host", "")
    if not _is_loopback(urlsplit(f"//{host}").hostname if _plain(host) else None):
        return f"the request is for the host {host[:100]!r}, not for this machine"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return f"the request comes from the web page {origin[:100]!r}"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "the request comes from a web page of another site"
    return None


def _plain(host: str) -> bool:
    return bool(host) and all(letter.isalnum() or letter in ".:[]-" for letter in host)


def _is_loopback(name: str | None) -> bool:
    if name is None:
        return False
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
