"""Have one candidate judged: a judge process, and the candidate and compiler processes that it asks for."""

import contextlib
import json
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llm4llm.errors import BadArguments, BadCandidate, BadTaskFolder, JudgeTimeout, StageError, UserError
from llm4llm.kit import MOST_SOURCE_BYTES, open_plain, remove_untrusted, write_untrusted
from llm4llm.sandbox import Child, ChildSpec, Failed, Files, Limits, Ok, Sandbox, own_caches, scrubbed
from llm4llm.schema.verdict import Verdict

_VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)
_FATE_TIMEOUT_S = 3.0
_COMPILE_TIMEOUT_S = 150.0
_TIME_LIMIT_S = 900.0
_MEMORY_SHARE = 0.6  # of the machine's, for one child
_FILE_BYTES = 4 << 30
_DISK_BYTES = 16 << 30
_PROCESSES = 64
_MOST_CHILDREN = 4  # candidates' processes at a time
_MOST_STARTS = 16  # of them in one judgement, which takes two
_MOST_COMPILERS = 2  # at a time
_CANDIDATE = "llm4llm.harness.candidate"


_SUBJECT = re.compile(r"(j\w+)/(\w+-[0-9a-f]{6})/socket")
_REPLY = re.compile(r"(j\w+)/(compiled-\d+\.json)")
_TOLD = frozenset({"LLM4LLM_CANDIDATE_SOCKET", "LLM4LLM_CANDIDATE_NONCE", "LLM4LLM_CANDIDATE_EARLY", "TRITON_INTERPRET"})


class _OutOfBounds(Exception):
    """The judge asked for what it has no business with. It reads files that a script has written, and is not trusted."""


class _Room:
    """The folder of one judgement, in which the judge, candidates and compilers write. It is known by its inode, not by its name."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700)
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.pin = _identity(os.fstat(self.fd))

    def inside(self, place: str, shape: re.Pattern[str]) -> tuple[str, ...]:
        """The parts of a path below the room. _OutOfBounds for any other."""
        found = shape.fullmatch(os.path.relpath(place, self.path)) if os.path.normpath(place) == place else None
        if found is None:
            raise _OutOfBounds(f"{place[:200]!r} is no place of this judgement")
        return found.groups()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _spec(module: str, python: str, files: Files, wall_s: float | None, environment: Mapping[str, str]) -> ChildSpec:
    """The judge, candidates and compilers: with limits, without network, and writing into one folder alone.

    Compilers' caches lie there too: what one candidate leaves in a cache must not become part of another.
    """
    (folder,) = files.writable
    limits = Limits(
        wall_s=wall_s,
        memory_bytes=int(_MEMORY_SHARE * _machine_memory_bytes()),
        processes=_PROCESSES,
        file_bytes=_FILE_BYTES,
        disk_bytes=_DISK_BYTES,
        disk_folders=(folder,),
        network=False,
    )
    own = {**scrubbed(os.environ), **own_caches(folder), **environment}
    return ChildSpec(module=module, python=python, working_directory=folder, environment=own, limits=limits, files=files)


@dataclass
class _Started:
    """The children of one judgement, by the socket that they connect to."""

    sandbox: Sandbox
    python: str
    room: _Room
    time_limit_s: float
    capabilities: frozenset[int] | None = None  # that kernels are wanted for; None: for the one that the judge finds
    children: dict[str, Child] = field(default_factory=dict)
    starts: int = 0
    compilers: dict[int, threading.Thread] = field(default_factory=dict)
    places: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_MOST_COMPILERS))
    lock: threading.Lock = field(default_factory=threading.Lock)
    compiling: list[Child] = field(default_factory=list)
    closed: bool = False

    def hear(self, event: dict[str, Any]) -> None:
        """An event of the judge; anything unknown is progress and nobody listens to it here. _OutOfBounds ends the judge."""
        if "spawn" in event:
            self._spawn(event["spawn"])
        elif "reap" in event:
            self._reap(str(event["reap"]["socket"]))
        elif "compile" in event:
            self._start_compiling(event["compile"])

    def _spec(self, module: str, environment: Mapping[str, str]) -> ChildSpec:
        room = self.room
        files = Files(hidden=self.sandbox.hidden, writable=(room.path,), pinned={str(room.path): room.pin})
        return _spec(module, self.python, files, self.time_limit_s, environment)

    def _spawn(self, wanted: dict[str, Any]) -> None:
        socket, environment = str(wanted["socket"]), dict(wanted["environment"])
        self.room.inside(socket, _SUBJECT)
        if environment.keys() - _TOLD or socket in self.children or len(self.children) >= _MOST_CHILDREN or self.starts >= _MOST_STARTS:
            raise _OutOfBounds(f"a candidate's process with {sorted(environment)}, and {len(self.children)} of {self.starts} are there")
        self.starts += 1
        try:
            self.children[socket] = self.sandbox.start(self._spec(_CANDIDATE, environment))
        except Exception as error:  # the judge waits for a process: it has to hear that there is none
            self._write_fate(socket, {"kind": "not_started", "reason": str(error), "exit_code": None, "stderr_tail": ""})

    def _reap(self, socket: str) -> None:
        child = self.children.pop(socket, None)
        if child is None:
            return
        # a candidate process closes its channel at once, so this asks nothing: it ends the child and says why it ended
        fate = child.request("fate", {}, _FATE_TIMEOUT_S)
        if isinstance(fate, Ok):
            fate = Failed("died", "it answered where nobody may", None, child.stderr_tail())
        facts = {"kind": fate.kind, "reason": fate.reason, "exit_code": fate.exit_code, "stderr_tail": fate.stderr_tail}
        child.kill()
        self._write_fate(socket, facts)

    def _start_compiling(self, wanted: dict[str, Any]) -> None:
        """Once for each GPU that was asked for. The compiler takes seconds: the judge goes on with other gates meanwhile."""
        place, capability = self.room.inside(str(wanted["reply"]), _REPLY), wanted["capability"]
        asked = capability in self.capabilities if self.capabilities is not None else not self.compilers
        if not isinstance(capability, int) or not asked or capability in self.compilers or place[1] != f"compiled-{capability}.json":
            raise _OutOfBounds(f"kernels for {capability}, which were not asked for or are being compiled")
        payload = {"candidate": str(wanted["candidate"]), "launches": wanted["launches"], "capability": capability}
        self.compilers[capability] = threading.Thread(target=self._compile, args=(payload, place), name="compile")
        self.compilers[capability].start()

    def _compile(self, payload: dict[str, Any], place: tuple[str, ...]) -> None:
        answer: dict[str, Any]
        try:
            # the compiler must not interpret, whatever the user's environment says
            spec = self._spec("llm4llm.harness.kernels", {"TRITON_INTERPRET": "0"})
            with self.places, self._compiler(spec) as child:
                made = child.request("compile", payload, _COMPILE_TIMEOUT_S)
            answer = {"ok": made.result} if isinstance(made, Ok) else {"kind": made.kind, "reason": made.reason}
        except Exception as error:  # the judge waits for an answer
            answer = {"kind": "not_started", "reason": str(error)}
        self._write(place, answer)

    @contextlib.contextmanager
    def _compiler(self, spec: ChildSpec) -> Iterator[Child]:
        """A child that ends with the judgement, whoever waits for it."""
        with self.lock:
            if self.closed:
                raise StageError("the judgement is over", "")
            child = self.sandbox.start(spec)
            self.compiling.append(child)
        with child:
            yield child

    def _write_fate(self, socket: str, facts: dict[str, Any]) -> None:
        self._write((*self.room.inside(socket, _SUBJECT), "socket.fate"), facts)

    def _write(self, place: tuple[str, ...], facts: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the judge may have given up and removed its folder
            write_untrusted(self.room.fd, place, json.dumps(facts).encode())

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        with self.lock:
            self.closed = True
            for child in self.compiling:
                child.strike()
        for thread in self.compilers.values():
            thread.join()
        os.close(self.room.fd)


class KeptJudge:
    """A judge process that stays for the next candidate of the same task, since starting one takes seconds, and with a GPU half a minute.

    It rebuilds the script's classes and reads what the script's process has written, so it is confined like a candidate, and what it asks
    for is checked. Every candidate gets fresh processes of its own. Owned by the thread that uses it.
    """

    def __init__(self, sandbox: Sandbox, python: str) -> None:
        self._sandbox, self._python = sandbox, python
        self._open = contextlib.ExitStack()
        self._task: tuple[Path, tuple[int, int]] | None = None  # its folder, known by its inode like a room
        self._scratch = Path()
        self._rooms = 0
        self._child: Child | None = None

    def __call__(self, task_folder: Path, candidate_file: Path, options: Mapping[str, Any]) -> Verdict:
        """One verdict.

        `options`: seed, seconds (for timing), gate_seconds, call_timeout_s, capabilities, shared_bytes, device, measure, and
        `time_limit_s` for the whole judgement. Raises BadTaskFolder, BadCandidate or BadArguments for unusable input and StageError if the
        judge itself fails.
        """
        task_folder, candidate_file = task_folder.resolve(), candidate_file.resolve()
        pin, candidate = _checked_task(task_folder), _checked_candidate(candidate_file)
        given = dict(options)
        time_limit_s = float(given.pop("time_limit_s", _TIME_LIMIT_S))
        child = self._ready(task_folder, pin)
        self._rooms += 1
        room = _Room(self._scratch / "rooms" / f"r{self._rooms}")
        asked = given.get("capabilities")
        started = _Started(self._sandbox, self._python, room, time_limit_s, None if asked is None else frozenset(asked))
        write_untrusted(room.fd, ("candidate.py",), candidate)  # the judge may not see where candidates are kept
        options = {**given, "scratch": str(room.path)}
        payload = {"task": str(task_folder), "candidate": str(room.path / "candidate.py"), "options": options}
        try:
            answer = child.request("judge", payload, time_limit_s, started.hear)
        except (_OutOfBounds, KeyError, TypeError, AttributeError, ValueError) as error:
            raise StageError(f"the judge asked for what it may not have ({error})", "the task's files were tampered with") from error
        finally:
            started.close()
        if isinstance(answer, Ok):
            try:
                return _VERDICT.validate_python(answer.result)
            except ValidationError as error:
                raise StageError("the judge gave no verdict that can be read", "the task's files were tampered with") from error
        raise _refusal(answer, task_folder, candidate_file)

    def close(self) -> None:
        """End the process. Idempotent; the next verdict starts another."""
        self._task = self._child = None
        self._open.close()

    def _ready(self, task_folder: Path, pin: tuple[int, int]) -> Child:
        if self._child is not None and self._task == (task_folder, pin) and self._child.alive:
            return self._child
        self.close()
        # sockets' paths are limited to about 100 bytes, so it lies directly below the system's folder for such things
        self._scratch = Path(tempfile.mkdtemp(prefix="l4-", dir=self._sandbox.spare))
        self._open.callback(remove_untrusted, self._scratch)
        rooms = self._scratch / "rooms"
        rooms.mkdir(mode=0o700)
        files = Files(
            hidden=self._sandbox.hidden,
            visible=(task_folder,),
            writable=(rooms,),
            pinned={str(task_folder): pin},
        )
        self._child = self._open.enter_context(self._sandbox.start(_spec("llm4llm.harness.judge", self._python, files, None, {})))
        self._task = task_folder, pin
        return self._child

    def __enter__(self) -> "KeptJudge":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def judge_candidate(task_folder: Path, candidate_file: Path, options: Mapping[str, Any], sandbox: Sandbox, python: str) -> Verdict:
    """One verdict from fresh processes; see KeptJudge for options and errors."""
    with KeptJudge(sandbox, python) as judge:
        return judge(task_folder, candidate_file, options)


def _checked_task(folder: Path) -> tuple[int, int]:
    """What the folder is by the same look that finds a task in it, before a process is started."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BadTaskFolder(str(folder), "there is no such folder") from error
    try:
        if not stat.S_ISREG(os.stat("task.json", dir_fd=opened, follow_symlinks=False).st_mode):
            raise BadTaskFolder(str(folder), "its task.json is no file")
        return _identity(os.fstat(opened))
    except OSError as error:
        raise BadTaskFolder(str(folder), "there is no task.json in it") from error
    finally:
        os.close(opened)


def _checked_candidate(file: Path) -> bytes:
    """A cheap refusal as well."""
    try:
        with open_plain(file) as opened:
            content = opened.read(MOST_SOURCE_BYTES + 1)
        content.decode("utf-8")
    except FileNotFoundError as error:
        raise BadCandidate(str(file), "there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadCandidate(str(file), str(error)) from error
    if len(content) > MOST_SOURCE_BYTES:
        raise BadCandidate(str(file), f"it is longer than {MOST_SOURCE_BYTES >> 10} KiB")
    return content


def _refusal(answer: Failed, task_folder: Path, candidate_file: Path) -> UserError | StageError:
    if answer.kind in ("bad_task", "task_not_reproducible", "no_device"):
        return BadTaskFolder(str(task_folder), answer.reason)
    if answer.kind == "bad_candidate":
        return BadCandidate(str(candidate_file), answer.reason)
    if answer.kind == "bad_options":
        return BadArguments(answer.reason, "see the options of llm4llm judge")
    if answer.kind == "timeout":
        return JudgeTimeout(answer.reason)
    tail = answer.stderr_tail.strip().splitlines()
    said = f" ({tail[-1]})" if tail else ""
    return StageError(f"the judge ended without a verdict: {answer.kind}, {answer.reason}{said}", "judge the candidate again")


def _machine_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
