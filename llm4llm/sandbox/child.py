"""A started child: ask it, close it, kill it."""

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from llm4llm.kit import kill_group
from llm4llm.sandbox.answer import Failed, Ok, OnEvent, exit_text
from llm4llm.sandbox.channel import ChannelClosed, ChannelTimeout, ParentChannel, ProtocolBroken
from llm4llm.sandbox.entry import Entry
from llm4llm.sandbox.spec import Limits
from llm4llm.sandbox.watch import Watch

_CLOSE_GRACE_S = 5.0
_HEAD_GRACE_S = 2.0
_DEATH_GRACE_S = 2.0  # between the end of the channel and the end of the process


class Child:
    """For use by one thread, but for `strike`.

    Leaving it as a context manager closes it in peace, or kills it if an exception passes.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        channel: ParentChannel | None,
        limits: Limits,
        ended: Callable[[int], None],
        entry: Entry,
        first: int,
    ) -> None:
        assert process.stderr is not None
        self.pid = process.pid  # of the head of its family, see launcher/family.py; the child itself is `first`
        self._entry = entry
        self._process = process
        self._channel = channel
        self._ended = ended
        self._pidfd = os.pidfd_open(process.pid)
        self._lock = threading.Lock()
        self._reaped = False
        self._cause: tuple[str, str] | None = None  # why we ended it
        self._requests = 0
        self._watch = Watch((process.pid, first), os.dup(process.stderr.fileno()), limits, self._strike)
        process.stderr.close()
        self._watch.start()

    @property
    def alive(self) -> bool:
        """False once the process has ended or was killed."""
        return not self._reaped and self._cause is None and not self._wait(0.0)

    def request(self, op: str, payload: dict[str, Any], timeout_s: float, on_event: OnEvent | None = None) -> Ok | Failed:
        """Ask and wait for the answer; events on the way go to `on_event`. An exception of `on_event` kills the child and passes on."""
        if self._channel is None:
            raise ValueError("this child was started without a channel")
        if self._reaped:
            return self._failure("died", "it had ended before it was asked")
        self._requests += 1
        deadline = time.monotonic() + timeout_s
        try:
            self._channel.send({"id": self._requests, "op": op, "payload": payload}, deadline)
            while True:
                message = self._channel.receive(self._requests, deadline)
                if "event" in message:
                    if on_event is not None:
                        on_event(message["event"])
                elif "ok" in message:
                    return Ok(message["ok"])
                else:
                    return self._own_error(message)
        except ChannelTimeout:
            return self._failure("timeout", f"{op} took longer than {timeout_s:g} s")
        except ChannelClosed:
            ended = self._wait(_DEATH_GRACE_S)
            return self._failure("died", "" if ended else "it closed its channel without an answer")
        except ProtocolBroken as broken:
            return self._failure("protocol", str(broken))
        except BaseException:
            self.kill()
            raise

    def wait(self, timeout_s: float | None = None) -> int | None:
        """The exit code once the process has ended, None if it still runs after `timeout_s`. Leftovers of its group are killed."""
        if not self._reaped and not self._wait(timeout_s):
            return None
        return self._reap()

    def close(self, grace_s: float = _CLOSE_GRACE_S) -> int:
        """Let it end by itself (the channel's end tells it), else kill it; its exit code."""
        if self._channel is not None and not self._reaped:
            self._watch.look()
            self._channel.finish()
            self._wait(grace_s)
        return self._reap()

    def kill(self) -> int:
        """End its whole group now; its exit code, negative for signals. Safe to call again."""
        self._strike("died", "it was ended")
        return self._reap()

    def strike(self) -> None:
        """End its whole group now, from any thread; its owner still has to kill or close it."""
        self._strike("died", "it was ended")

    def stderr_tail(self) -> str:
        """The last lines that it and its descendants printed to stdout and stderr."""
        return self._watch.tail()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.kill()

    def _own_error(self, message: dict[str, Any]) -> Failed:
        error = message.get("error")
        if not isinstance(error, dict):
            return self._failure("protocol", "a message is neither an event nor an answer")
        return Failed(str(error.get("kind", "error")), str(error.get("reason", "")), None, self.stderr_tail())

    def _failure(self, kind: str, reason: str) -> Failed:
        """End the child and say why; the reason for which the watch ended it goes first."""
        with self._lock:
            kind, reason = self._cause or (kind, reason)
        exit_code = self.kill()
        return Failed(kind, reason or exit_text(exit_code), exit_code, self.stderr_tail())

    def _strike(self, kind: str, reason: str) -> None:
        """Kill the group, unless its number may already belong to somebody else."""
        with self._lock:
            if self._reaped:
                return
            if self._cause is None and not self._wait(0.0):
                self._cause = (kind, reason)
            self._end_family()

    def _end_family(self) -> None:
        """By its head, which knows everybody; what that leaves, or all if the head was ended itself, as far as we find it."""
        self._entry.let_go()
        self._wait(_HEAD_GRACE_S)
        kill_group(self.pid, also=self._watch.sessions)

    def _wait(self, timeout_s: float | None) -> bool:
        """True once the process has ended; it stays a zombie, which keeps its number ours."""
        if self._reaped:
            return True
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else 1000 * timeout_s))

    def _reap(self) -> int:
        with self._lock:
            if not self._reaped:
                self._end_family()
                self._process.wait()
                self._reaped = True
                self._entry.close()
                os.close(self._pidfd)
                self._ended(self.pid)
        self._watch.stop()
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.close()
        return self._process.returncode
