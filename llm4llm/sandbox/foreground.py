"""A child on our own terminal: it gets the signals that we get, and we end when it ends."""

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import FrameType

from llm4llm.kit import kill_group, signal_group

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_in_foreground(process: subprocess.Popen[bytes], wall_s: float | None) -> int:
    """Wait for a child that leads its own group, then end what is left of the group; the child's exit code, negative for signals."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        with _forwarding(process.pid):
            # not reaped before its group is gone: until then its number can't become somebody else's
            poller.poll(None if wall_s is None else 1000 * wall_s)
    finally:
        os.close(pidfd)
        kill_group(process.pid)
    return process.wait()


@contextlib.contextmanager
def _forwarding(group: int) -> Iterator[None]:
    """Pass signals on to the group while inside; only the main thread may set handlers, elsewhere nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, frame: FrameType | None) -> None:
        signal_group(group, number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
