"""The private channel between a child and its parent: JSON lines over an inherited socket.

Every line carries the nonce that the parent handed over, so that nothing printed or written by generated code can pass for a message.
A request is {"id", "op", "payload"}; the child answers with any number of {"id", "event"} and one {"id", "ok"} or {"id", "error"}.
"""

import json
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

FD_VARIABLE = "LLM4LLM_CHANNEL_FD"
NONCE_VARIABLE = "LLM4LLM_CHANNEL_NONCE"
MAX_LINE_BYTES = 8 << 20  # the parent takes no longer line; the same number as in sandbox/channel.py
_MOST_REASON = 100_000
_ORPHANED_S = 10.0


class Channel:
    """The child's end. Not safe for use by two threads at once, except `event`, which sends one whole line."""

    def __init__(self, sock: socket.socket, nonce: str) -> None:
        self._socket = sock
        self._nonce = nonce
        self._buffer = b""
        self._current: int | None = None

    @classmethod
    def inherited(cls) -> "Channel":
        """Take the channel named by the environment and remove its name, so that the user's code never sees it."""
        fd, nonce = int(os.environ.pop(FD_VARIABLE)), os.environ.pop(NONCE_VARIABLE)
        os.set_inheritable(fd, False)
        return cls(socket.socket(fileno=fd), nonce)

    def requests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Requests until the parent closes its end; answer each one before asking for the next."""
        while True:
            line = self._line()
            if line is None:
                return
            message = json.loads(line)
            self._current = message["id"]
            yield message["op"], message.get("payload", {})

    def event(self, facts: dict[str, Any]) -> None:
        """Tell the parent of progress within the current request."""
        self._send({"id": self._current, "event": facts})

    def forget(self) -> None:
        """Let go of the socket without a word to the parent (in a forked child, which must not keep the channel open)."""
        self._socket.close()

    def ok(self, result: dict[str, Any]) -> None:
        """Answer; a result that the parent would not take becomes an error that says so."""
        line = self._encoded({"id": self._current, "ok": result})
        if len(line) > MAX_LINE_BYTES:
            self.error("too_large", f"the answer has {len(line) >> 20} MiB, and {MAX_LINE_BYTES >> 20} MiB is the most that can be told")
        else:
            self._socket.sendall(line)

    def error(self, kind: str, reason: str) -> None:
        self._send({"id": self._current, "error": {"kind": kind, "reason": reason[:_MOST_REASON]}})

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(self._encoded(message))

    def _encoded(self, message: dict[str, Any]) -> bytes:
        return json.dumps({"nonce": self._nonce, **message}).encode() + b"\n"

    def _line(self) -> bytes | None:
        while b"\n" not in self._buffer:
            try:
                chunk = self._socket.recv(1 << 16)
            except ConnectionError:
                chunk = b""
            if not chunk:
                self._stand_still_if_orphaned()
                return None
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _stand_still_if_orphaned(self) -> None:
        """Wait to be killed if the parent has died; return at once if it only has no more requests.

        See confine.py: the guardian ends the whole family, and finds those in sessions of their own through us. The kernel closes a dead
        process's files before it tells its children.
        """
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        if any(events & select.POLLHUP for _, events in poller.poll(0)):
            time.sleep(_ORPHANED_S)
