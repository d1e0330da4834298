"""Signals that end a worker in good order."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from llm4llm.kit import Bell

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_DRAINING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt like SIGINT does, so that children end and the job stays continuable.

    Only the main thread may set handlers; in any other nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    with _handling(_ENDING, end):
        yield


@contextmanager
def drained_by_signals(stop: Bell) -> Iterator[None]:
    """Inside, the first SIGTERM, SIGHUP or SIGINT rings the bell and the second one ends the process as if nobody had listened.

    Nothing is raised: a write to the store is never torn, and what happened is known. Only for the main thread.
    """

    def drain(number: int, frame: FrameType | None) -> None:
        if stop.rung:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.ring()

    with _handling(_DRAINING, drain):
        yield


@contextmanager
def _handling(numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
