"""Bells: rung once, heard by everybody, even from a signal handler."""

import os
import signal
import threading
from types import FrameType

from llm4llm.kit import Bell, first_rung


def test_a_bell_is_heard_before_and_after() -> None:
    with Bell() as bell, Bell() as other:
        assert not bell.wait(0)
        heard: list[bool] = []
        waiting = [threading.Thread(target=lambda: heard.append(bell.wait(None))) for _ in range(3)]
        for thread in waiting:
            thread.start()
        bell.ring()
        bell.ring()
        for thread in waiting:
            thread.join(30)
        assert heard == [True] * 3
        assert bell.wait(0)
        assert first_rung((other, bell), 30) is bell
        assert first_rung((other,), 0) is None


def test_a_signal_handler_may_ring_while_the_same_thread_waits() -> None:
    with Bell() as bell:

        def ring(number: int, frame: FrameType | None) -> None:
            bell.ring()

        before = signal.signal(signal.SIGUSR1, ring)
        try:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            assert bell.wait(30)
        finally:
            signal.signal(signal.SIGUSR1, before)
