"""A time limit on code that we did not write: an exception in the main thread, again and again until it has ended."""

import signal
import threading
from types import FrameType, TracebackType

GRACE_S = 5.0
_SIGNAL = signal.SIGRTMAX - 3  # a number that neither Python nor its users touch


class TimeUp(KeyboardInterrupt):
    """The script's time is used up. A KeyboardInterrupt, because libraries know how to end in order on that one."""


class TimeLimit:
    """Counts from `start`; raises TimeUp in the main thread while armed. Make and use it in the main thread."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._armed = False
        self._over = threading.Event()
        self._previous: object = None
        self.fired = False

    def start(self) -> None:
        self._previous = signal.signal(_SIGNAL, self._handle)
        if self._seconds is not None:
            threading.Thread(target=self._watch, args=(self._seconds, threading.get_ident()), name="time limit", daemon=True).start()

    def stop(self) -> None:
        """No exception comes any more."""
        self._armed = False
        self._over.set()
        signal.signal(_SIGNAL, signal.SIG_IGN)

    def __enter__(self) -> None:
        """Let the exception come from here on; what has fired before comes at once."""
        self._armed = True
        if self.fired:
            raise TimeUp

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._armed = False

    def _watch(self, seconds: float, thread: int) -> None:
        wait = seconds
        while not self._over.wait(wait):
            self.fired = True
            # the signal also ends system calls that the script waits in
            signal.pthread_kill(thread, _SIGNAL)
            wait = GRACE_S

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            raise TimeUp
