"""Something that happens once, to be waited for: safe to ring from a signal handler and from any thread."""

import contextlib
import os
import select
from collections.abc import Iterable
from types import TracebackType


class Bell:
    """Rung at most once and rung for ever. Not threading.Event: setting that in a signal handler can block on its own lock."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self.rung = False

    def ring(self) -> None:
        self.rung = True
        with contextlib.suppress(OSError):
            # never read: whoever waits, now or later, finds the byte
            os.write(self._write, b"!")

    def wait(self, seconds: float | None) -> bool:
        """True once it was rung; False after so many seconds, never if they are None."""
        return first_rung((self,), seconds) is not None

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def __enter__(self) -> "Bell":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def first_rung(bells: Iterable[Bell], seconds: float | None) -> Bell | None:
    """The first of these bells that was rung, waiting for at most so many seconds; None after them."""
    bells = tuple(bells)
    poller = select.poll()
    for bell in bells:
        poller.register(bell, select.POLLIN)
    ready = {number for number, _ in poller.poll(None if seconds is None else max(0.0, 1000 * seconds))}
    return next((bell for bell in bells if bell.fileno() in ready), None)
