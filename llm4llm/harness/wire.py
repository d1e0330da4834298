"""Frames between the judge and a candidate process: one JSON line, then the bytes it announces.

The judge listens on a socket in a folder that only its user can enter; the other side has to open with the nonce. Every frame carries it,
so nothing that generated code prints can pass for an answer.
"""

import hmac
import json
import socket
from typing import Any

_LARGEST_HEADER = 64 << 20
_LARGEST_BLOBS = 16 << 30


class WireClosed(Exception):
    """The other side is gone or does not keep to the form."""


class Wire:
    """One end of a connection; every blocking step raises TimeoutError after the socket's timeout."""

    def __init__(self, sock: socket.socket, nonce: str) -> None:
        self._socket = sock
        self._nonce = nonce
        self._file = sock.makefile("rb")

    def send(self, message: dict[str, Any], blobs: list[bytes] | None = None) -> None:
        blobs = blobs or []
        header = json.dumps({"nonce": self._nonce, "blobs": [len(blob) for blob in blobs], "message": message}).encode() + b"\n"
        try:
            self._socket.sendall(header)
            for blob in blobs:
                self._socket.sendall(blob)
        except TimeoutError:
            raise
        except OSError as error:
            raise WireClosed(str(error)) from error

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """The next frame. Raises WireClosed at the end of the stream, at a wrong nonce and at anything that is no frame."""
        try:
            line = self._file.readline(_LARGEST_HEADER)
            if not line.endswith(b"\n"):
                raise WireClosed("the connection ended")
            header = json.loads(line)
            if not hmac.compare_digest(str(header["nonce"]), self._nonce):
                raise WireClosed("a frame without the nonce")
            sizes = [int(size) for size in header["blobs"]]
            if min(sizes, default=0) < 0 or sum(sizes) > _LARGEST_BLOBS:
                raise WireClosed("a frame of impossible size")
            return header["message"], [self._exactly(size) for size in sizes]
        except TimeoutError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WireClosed(f"not a frame: {error}") from error

    def _exactly(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) != size:
            raise WireClosed("the connection ended within a frame")
        return content

    def timeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._file.close()
        self._socket.close()
