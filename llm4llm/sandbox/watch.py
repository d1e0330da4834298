"""One thread per child: keeps the end of what it prints and ends its group when it uses more than its limits."""

import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from llm4llm.kit import members, proportional_bytes, resident_bytes, sessions_of, unnamed_bytes, with_zombies
from llm4llm.sandbox.disk import Unmeasurable, used_bytes
from llm4llm.sandbox.spec import Limits

_TAIL_BYTES = 32 * 1024
_MEMORY_POLL_S = 0.25
# a look at every process of the machine: 1 to 10 ms
_FAMILY_POLL_S = 1.0
_REST = 4.0  # times as long as the last look took


class Watch:
    """Drains a pipe and enforces wall time, memory, disk and process count; `end(kind, reason)` is called once, from the thread."""

    def __init__(self, family: tuple[int, int], output_fd: int, limits: Limits, end: Callable[[str, str], None]) -> None:
        """`family`: its head, and the child itself."""
        self._group, self._first = family
        self._output_fd = output_fd
        self._limits = limits
        self._end = end
        self._born = time.monotonic()
        self._tail = bytearray()
        self.sessions: frozenset[int] = frozenset()  # made within the family, as far as they were seen
        self._unnamed = (0, 0)  # bytes of open files without a name, in memory and on disks
        self._lock = threading.Lock()
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name=f"watch-{self._group}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tail(self) -> str:
        """The last lines that the child and its descendants printed."""
        return bytes(self._tail).decode(errors="replace")

    def look(self) -> None:
        """Remember the family's sessions now: after a peaceful end nobody can tell whose they were."""
        self.sessions |= sessions_of(members(self._group))

    def stop(self) -> None:
        """Take what is still in the pipe, end the thread and close every file descriptor."""
        with self._lock:
            stop, self._stop_write = self._stop_write, -1
        if stop < 0:
            return
        os.close(stop)
        self._thread.join()
        os.close(self._stop_read)
        os.close(self._output_fd)

    def _run(self) -> None:
        os.set_blocking(self._output_fd, False)
        poller = select.poll()
        poller.register(self._stop_read, select.POLLIN | select.POLLHUP)
        poller.register(self._output_fd, select.POLLIN | select.POLLHUP)
        memory_at = family_at = self._born
        watching = True
        while True:
            ready = dict(poller.poll(1000 * self._pause_s() if watching else None))
            if self._output_fd in ready and not self._drain():
                poller.unregister(self._output_fd)
            if self._stop_read in ready:
                self._drain()
                return
            now = time.monotonic()
            if not watching or now < memory_at:
                continue
            memory_at = now + _MEMORY_POLL_S
            whole = now >= family_at
            breach = self._breach(now, whole)
            if whole:
                # a look at a million files takes seconds, in which memory is not looked at
                ready_at = time.monotonic()
                family_at = ready_at + max(_FAMILY_POLL_S, _REST * (ready_at - now))
            if breach is not None:
                watching = False
                self._end(*breach)

    def _pause_s(self) -> float:
        if self._limits.wall_s is None:
            return _MEMORY_POLL_S
        return max(0.0, min(_MEMORY_POLL_S, self._born + self._limits.wall_s - time.monotonic()) + 0.001)

    def _drain(self) -> bool:
        """Read what is there; False once every writer has closed the pipe. At most 1 MiB per round, so that limits stay watched."""
        for _ in range(16):
            try:
                chunk = os.read(self._output_fd, 1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not chunk:
                return False
            self._tail += chunk
            del self._tail[:-_TAIL_BYTES]
        return True

    def _breach(self, now: float, whole: bool) -> tuple[str, str] | None:
        limits = self._limits
        if whole and (limits.memory_bytes is not None or limits.disk_bytes is not None):
            self._unnamed = unnamed_bytes(self._group)
        if limits.wall_s is not None and now - self._born >= limits.wall_s:
            return "timeout", f"it ran longer than {limits.wall_s:g} s"
        if limits.memory_bytes is not None and self._memory_bytes(whole) > limits.memory_bytes:
            return "oom", f"it used more than {limits.memory_bytes / 2**20:,.0f} MiB of memory"
        if whole and limits.processes is not None:
            everybody = with_zombies(self._group)
            found = [member for member in everybody if not member.ended]
            self.sessions |= sessions_of(found)
            if len(found) - 1 > limits.processes:  # its head is ours
                return "processes", f"it started more than {limits.processes} processes"
            if sum(max(1, member.threads) for member in everybody) - 1 > limits.tasks:
                return "processes", f"it had more than {limits.tasks} threads and ended processes that it did not wait for"
        if whole and limits.disk_bytes is not None:
            return _disk_breach(limits.disk_folders, limits.disk_bytes, self._unnamed[1])
        return None

    def _memory_bytes(self, whole: bool) -> int:
        """Resident memory: of the child alone four times a second, of the whole family and its files in memory once a second."""
        assert self._limits.memory_bytes is not None
        in_memory = self._unnamed[0]
        held = resident_bytes(self._group) + in_memory if whole else _bytes_of(self._first)
        if held > self._limits.memory_bytes:
            # pages shared between forks were counted more than once: ask again, precisely
            return proportional_bytes(self._group, in_memory)
        return held


def _bytes_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _disk_breach(folders: tuple[Path, ...], most: int, unnamed: int) -> tuple[str, str] | None:
    try:
        used = unnamed + used_bytes(folders, most)
    except Unmeasurable as error:
        return "disk", str(error)
    return ("disk", f"it wrote more than {most / 2**20:,.0f} MiB") if used > most else None
