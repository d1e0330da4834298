"""The judge's end of a candidate process: have it started, ask it, know how it died."""

import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm4llm.harness.candidate import SECRET_VARIABLE, SOCKET_VARIABLE
from llm4llm.harness.portrait import Leaf, Tree, from_bytes
from llm4llm.harness.roomfiles import Folder
from llm4llm.harness.wire import Wire, WireClosed

Tell = Callable[[dict[str, Any]], None]  # an event to the parent

START_TIMEOUT_S = 120.0
_FATE_TIMEOUT_S = 15.0
_POLL_S = 0.01
_FATE_BYTES, _ERRORS_BYTES = 1 << 20, 8192


class Gone(Exception):
    """The process ended or did not answer in time. `kind`: "timeout", "oom", "died" or "not_started"."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Broken(Exception):
    """Our own code in the candidate process failed: no verdict on the candidate."""


@dataclass(frozen=True)
class Answered:
    """Facts of an answer, and its tensors where it has any."""

    facts: dict[str, Any]
    blobs: list[bytes]

    @property
    def violations(self) -> list[dict[str, str]]:
        return list(self.facts.get("violations", []))

    @property
    def error(self) -> dict[str, Any] | None:
        return self.facts.get("error")

    def picture(self, facts: dict[str, Any] | None = None) -> tuple[Tree, list[Leaf]]:
        """The portrait in an answer. Raises Gone if it is none."""
        facts = self.facts if facts is None else facts
        try:
            return facts["tree"], [self._leaf(one) for one in facts["leaves"]]
        except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            raise Gone("died", f"its answer is malformed ({error})") from error

    def _leaf(self, one: dict[str, Any]) -> Leaf:
        shape = tuple(int(size) for size in one["shape"])
        values = None if one["blob"] is None else from_bytes(self.blobs[one["blob"]], one["dtype"], shape)
        stride = tuple(int(step) for step in one["stride"])
        return Leaf(one["path"], one["type"], one["dtype"], shape, stride, one["device"], values, bool(one["requires_grad"]))


class Subject:
    """A candidate process. It is asked for on creation and waited for at the first request, so that several can start at once."""

    def __init__(self, folder: Path, tell: Tell, environment: dict[str, str], purpose: str) -> None:
        self.folder = folder / f"{purpose}-{secrets.token_hex(3)}"
        self.folder.mkdir(mode=0o700)
        self._files = Folder.at(self.folder)
        self._path = self.folder / "socket"
        self._nonce = secrets.token_hex(16)
        self._tell = tell
        self._wire: Wire | None = None
        self._pid = 0
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._bind()
        self._listener.listen(1)
        named = {SOCKET_VARIABLE: str(self._path), SECRET_VARIABLE: self._nonce, **environment}
        tell({"spawn": {"socket": str(self._path), "environment": named, "purpose": purpose, "module": "llm4llm.harness.candidate"}})

    def _bind(self) -> None:
        """Bind through the folder's descriptor: a path may be longer than a socket's name can be (108 bytes)."""
        if len(os.fsencode(self._path)) < 100:
            self._listener.bind(str(self._path))
            return
        raise Broken(f"the path {self._path} is too long for a socket; use a shorter scratch folder")

    def ask(self, op: str, payload: dict[str, Any], timeout_s: float, blobs: list[bytes] | None = None) -> Answered:
        """One request. Raises Gone, and Broken if the fault is ours."""
        wire = self._wire or self._connected()
        wire.timeout(timeout_s)
        try:
            wire.send({"op": op, "payload": payload}, blobs)
            facts, out = wire.receive()
        except TimeoutError as error:
            self.end()
            raise Gone("timeout", f"{op} took longer than {timeout_s:g} s") from error
        except WireClosed as error:
            raise self._fate(str(error)) from error
        if "fault" in facts:
            raise Broken(f"{facts['fault']}\n{facts.get('trace', '')}")
        return Answered(facts, out)

    def spent_s(self) -> float:
        """Seconds by the kernel's count that the process's main thread has run; wall time where the kernel does not tell.

        Nothing inside the process can change it, and unlike wall time it does not grow with other work on the machine.
        """
        try:
            return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return time.perf_counter()

    def end(self) -> None:
        """Have the process killed."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        self._listener.close()
        self._tell({"reap": {"socket": str(self._path)}})

    def _connected(self) -> Wire:
        self._listener.settimeout(_POLL_S * 10)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if self._read_fate() is not None:
                    raise self._fate("it ended before it answered") from None
                continue
            wire = Wire(connection, self._nonce)
            wire.timeout(START_TIMEOUT_S)
            try:
                wire.receive()
            except (WireClosed, TimeoutError):
                wire.close()
                continue
            self._wire = wire
            self._pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
            return wire
        self.end()
        raise Gone("not_started", f"no candidate process answered within {START_TIMEOUT_S:g} s")

    def _read_fate(self) -> dict[str, Any] | None:
        """None as long as the parent has not said how it ended."""
        try:
            fate = json.loads(self._files.end_of("socket.fate", _FATE_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return fate if isinstance(fate, dict) and fate else None

    def _fate(self, said: str) -> Gone:
        """How the process ended, as the parent saw it, with the line of its standard error that matters."""
        self.end()
        deadline = time.monotonic() + _FATE_TIMEOUT_S
        while (fate := self._read_fate() or {}) == {} and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        kind, reason = str(fate.get("kind", "died")), str(fate.get("reason", said))
        line = essential_line(self._errors() or str(fate.get("stderr_tail", "")))
        if kind not in ("timeout", "oom"):
            kind = "oom" if _is_memory(line) else "died"
        return Gone(kind, reason + (f": {line}" if line else ""))

    def _errors(self) -> str:
        try:
            return self._files.end_of("socket.stderr", _ERRORS_BYTES).decode(errors="replace")
        except OSError:
            return ""


def _is_memory(line: str) -> bool:
    return any(word in line for word in ("MemoryError", "can't allocate memory", "out of memory", "Cannot allocate"))


def essential_line(tail: str) -> str:
    """The line of an error output that says what happened: the last one that looks like an error, else the last one."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "error" in line or "fault" in line or "Aborted" in line]
    return (telling or lines or [""])[-1][:300]
