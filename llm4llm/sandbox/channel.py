"""The parent's end of the private channel: JSON lines, each with the nonce that only the child's own code was handed.

A user's script shares the live host's process, so a line may be anything. What one line can make us hold is bounded before it is parsed:
its bytes, and how many values it can have.
"""

import json
import secrets
import socket
import time
from typing import Any

MAX_LINE_BYTES = 8 << 20  # a profile names every instance of a module: 75 000 experts are 7 MiB. The same number as in harness/channel.py
_MAX_VALUES = 1_000_000  # a value takes 100 bytes and more once it is parsed, however few it has in the line
_CHUNK_BYTES = 1 << 16


class ChannelClosed(Exception):
    """The child closed its end, usually by dying."""


class ChannelTimeout(Exception):
    """Nothing complete came, or nothing was taken, before the deadline."""


class ProtocolBroken(Exception):
    """Something else than the child's own code wrote to the channel; the message says what is wrong with it."""


class ParentChannel:
    """One end of a socket pair; `deadline` is in seconds of time.monotonic()."""

    def __init__(self) -> None:
        self._socket, self._child_socket = socket.socketpair()
        self.nonce = secrets.token_hex(16)
        self._buffer = bytearray()
        self._searched = 0

    @property
    def child_fd(self) -> int:
        """The end to hand to the child."""
        return self._child_socket.fileno()

    def started(self) -> None:
        """The child has its end: close ours of it, so that its death closes the channel."""
        self._child_socket.close()

    def send(self, message: dict[str, Any], deadline: float) -> None:
        self._wait_at_most(deadline)
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except TimeoutError as error:
            raise ChannelTimeout from error
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, request: int, deadline: float) -> dict[str, Any]:
        """The next message that belongs to this request."""
        line = self._line(deadline)
        if sum(map(line.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise ProtocolBroken(f"a line on its channel has more than {_MAX_VALUES} values")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ProtocolBroken(f"a line on its channel is not JSON: {line[:80]!r}") from error
        if not isinstance(message, dict) or message.get("nonce") != self.nonce:
            raise ProtocolBroken(f"a line on its channel does not carry the nonce: {line[:80]!r}")
        if message.get("id") != request:
            raise ProtocolBroken(f"a message answers request {str(message.get('id'))[:80]} where {request} was asked")
        if any(not isinstance(message[part], dict) for part in ("event", "ok") if part in message):
            raise ProtocolBroken("an event or an answer on its channel is no object")
        return message

    def finish(self) -> None:
        """Tell the child that no request follows; it may still send."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()
        self._child_socket.close()

    def _line(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            self._check_length(self._searched)
            self._wait_at_most(deadline)
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except TimeoutError as error:
                raise ChannelTimeout from error
            except OSError as error:
                raise ChannelClosed from error
            if not chunk:
                raise ChannelClosed
            self._buffer += chunk
        self._check_length(end)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def _check_length(self, length: int) -> None:
        if length > MAX_LINE_BYTES:
            raise ProtocolBroken(f"a line on its channel is longer than {MAX_LINE_BYTES >> 20} MiB")

    def _wait_at_most(self, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise ChannelTimeout
        self._socket.settimeout(left_s)
