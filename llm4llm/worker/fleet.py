"""Several workers as child processes: started, started again when they die, and asked to go together."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

from llm4llm.kit import Bell
from llm4llm.worker.loop import Rounds

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_LIVED_LONG_S = 60.0  # a worker that dies sooner than this after its start may well do so again
GRACE_S = 30.0


class Fleet:
    """Workers that live as long as this object is entered, or until each has run once if the rounds say so.

    They are no part of our process group: Ctrl-C in a terminal reaches us alone, and we ask them to go, by closing their standard input.
    The kernel does the same when we are killed.
    """

    def __init__(self, count: int, rounds: Rounds, as_json: bool = False, environment: Mapping[str, str] | None = None) -> None:
        self._command = _command(rounds, as_json)
        self._once = rounds.once
        self._environment = dict(os.environ if environment is None else environment)
        self._stop = Bell()
        self._lock = threading.Lock()
        self._living: dict[int, subprocess.Popen[bytes]] = {}
        self._threads = [threading.Thread(target=self._keep_one, name=f"fleet-{n}", daemon=True) for n in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def pids(self) -> Sequence[int]:
        """Numbers of the workers that live now."""
        with self._lock:
            return tuple(self._living)

    def wait(self, seconds: float | None = None) -> bool:
        """True once every worker has ended for good; False after so many seconds."""
        ends = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is None:
                continue  # never started
            thread.join(None if ends is None else max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask every worker to hand back its job and go; who has not gone after `grace_s` is killed, and its guardian ends its children."""
        self._stop.ring()
        with self._lock:
            living = list(self._living.values())
        for process in living:
            _ask(process)
        if not self.wait(grace_s):
            for process in living:
                process.kill()
            self.wait()

    def __enter__(self) -> "Fleet":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _keep_one(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stop.rung:
            started = time.monotonic()
            process = self._started()
            code = process.wait()
            with self._lock:
                del self._living[process.pid]
            _ask(process)  # closes our end
            if self._once or self._stop.rung:
                return
            pause = _FIRST_PAUSE_S if time.monotonic() - started > _LIVED_LONG_S else min(_LONGEST_PAUSE_S, 2 * pause)
            _LOG.error("worker %s ended with exit code %s; the next one starts in %.0f s", process.pid, code, pause)
            self._stop.wait(pause)

    def _started(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=self._environment, start_new_session=True)
            self._living[process.pid] = process
        if self._stop.rung:
            # `stop` may have looked before it was there
            _ask(process)
        return process


def _command(rounds: Rounds, as_json: bool) -> list[str]:
    flags = [*(["--once"] if rounds.once else []), *(["--json"] if as_json else [])]
    # -P: nothing of the folder that we happen to be in is imported
    return [sys.executable, "-P", "-m", "llm4llm.worker", "--poll", str(rounds.poll_s), *flags]


def _ask(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
