"""Process groups on Linux: who is in one, how much memory it holds, and how to end it.

Read from /proc, one small file per process: psutil asks the kernel five times as often for the same four fields.
"""

import contextlib
import os
import signal
import stat
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from llm4llm.launcher.family import end_below

_PROC = Path("/proc")
_POLL_S = 0.02
_MOST_FILES = 20_000  # open files that are looked at, 3 us each
_BELOW_S = 5.0  # a process that waits for a device can't be killed
_ENDED = "ZX"  # zombie and dead, proc(5)


@dataclass(frozen=True)
class Member:
    """A process of a group, session or family."""

    pid: int
    parent: int
    group: int
    session: int
    name: str
    threads: int = 1
    ended: bool = False  # a zombie: nobody has asked yet how it ended


def members(group: int, also: Collection[int] = ()) -> list[Member]:
    """Living processes of a group, of the session with that id, and all their descendants; zombies don't count.

    A descendant that made a session of its own is found for as long as its parent lives; `also` names such sessions that are known already.
    """
    return [member for member in with_zombies(group, also) if not member.ended]


def with_zombies(group: int, also: Collection[int] = ()) -> list[Member]:
    """As `members`, and those that have ended but still have a number."""
    table = _table()
    wanted = {group, *also}
    found = {member.pid: member for member in table if wanted & {member.group, member.session, member.pid}}
    grown = True
    while grown:
        new = {member.pid: member for member in table if member.parent in found and member.pid not in found}
        found |= new
        grown = bool(new)
    return list(found.values())


def start_ticks(pid: int) -> int | None:
    """When a living process was started, in clock ticks since the machine was; None if it is gone. Names it for good, with its number."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(") ")[2].split()
        # the first thread may be a zombie while others still hold on to the process's files
        ended = fields[0] in _ENDED and len(os.listdir(_PROC / str(pid) / "task")) < 2
        return None if ended else int(fields[19])
    return None


def sessions_of(found: Collection[Member]) -> frozenset[int]:
    """Sessions that were made within a family: their leader is one of it."""
    pids = {member.pid for member in found}
    return frozenset(member.session for member in found if member.session in pids)


def _table() -> list[Member]:
    """Every process of the machine."""
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            name, _, rest = (entry / "stat").read_text(errors="replace").partition("(")[2].rpartition(") ")
            fields = rest.split()
            parent, group, session, threads = (int(fields[at]) for at in (1, 2, 3, 17))
            # the first thread may be a zombie while others go on
            ended = fields[0] in _ENDED and threads < 2
            found.append(Member(int(entry.name), parent, group, session, name, threads, ended))
    return found


def resident_bytes(group: int) -> int:
    """Memory that a group's processes hold; pages shared between them count once for each holder."""
    return sum(_resident(member.pid) for member in members(group))


def _resident(pid: int) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, IndexError):
        if pages := int((_PROC / str(pid) / "statm").read_text().split()[1]):
            return page * pages
        # its first thread has ended: the others know
        return max(page * int((task / "statm").read_text().split()[1]) for task in (_PROC / str(pid) / "task").iterdir())
    return 0


def proportional_bytes(group: int, unnamed: int = 0) -> int:
    """Memory that a group's processes hold, shared pages split between their holders. Slow: milliseconds per held GiB.

    `unnamed`: bytes of files in memory that they hold, see `unnamed_bytes`. What of them is mapped counts once.
    """
    sizes = {"Pss": 0, "Pss_Shmem": 0}
    for member in members(group):
        with contextlib.suppress(OSError, ValueError):
            for line in (_PROC / str(member.pid) / "smaps_rollup").read_text().splitlines():
                name, _, size = line.partition(":")
                if name in sizes:
                    sizes[name] += 1024 * int(size.split()[0])
    total, mapped = sizes.values()
    return (total or resident_bytes(group)) + max(0, unnamed - mapped)


def unnamed_bytes(group: int) -> tuple[int, int]:
    """What open files without a name take up, in memory and on disks: nobody finds them in a folder, and no process has them as its own."""
    found: dict[tuple[int, int], int] = {}
    left = _MOST_FILES
    for member in members(group):
        folder = f"/proc/{member.pid}/fd"
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if left == 0:
                    break
                left -= 1
                with contextlib.suppress(OSError):
                    file = os.stat(entry.path)
                    if file.st_nlink == 0 and stat.S_ISREG(file.st_mode):
                        found[file.st_dev, file.st_ino] = 512 * file.st_blocks
    in_memory = sum(size for (device, _), size in found.items() if device in _memory_devices())
    return in_memory, sum(found.values()) - in_memory


@cache
def _memory_devices() -> frozenset[int]:
    """Where memfd_create and shm_open put their files."""
    found = set()
    with contextlib.suppress(OSError):
        found.add(os.stat("/dev/shm").st_dev)  # noqa: S108
    with contextlib.suppress(OSError):
        fd = os.memfd_create("probe")
        found.add(os.fstat(fd).st_dev)
        os.close(fd)
    return frozenset(found)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to every process of a group; False if there is none left that may be signalled."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_group(group: int, grace_s: float = 0.0, also: Collection[int] = ()) -> bool:
    """End a group, the sessions `also` and all descendants: SIGTERM, then SIGKILL after `grace_s`. True once nothing is left.

    The caller reaps its own child; a group that is only zombies counts as ended.
    """
    # found before anything dies: an orphan with a session of its own is nobody's descendant any more
    left = members(group, also)
    known = {*also, *sessions_of(left)}
    if grace_s > 0 and signal_group(group, signal.SIGTERM):
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and (left := members(group, known)):
            time.sleep(_POLL_S)
    # its first process last: it may be the head of a family (see launcher/family.py), without which orphans are nobody's
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(group, signal.SIGSTOP)
    end_below(group, _BELOW_S)
    left = _frozen(group, known)
    known |= sessions_of(left)
    for member in reversed(left):
        # the head of the family last: we may be killed half-way, and whoever goes on finds the others through it
        if member.group != group:
            _send(member, signal.SIGKILL)
    signal_group(group, signal.SIGKILL)
    # a fork may race with this, hence the rounds
    for _ in range(100):
        for member in left:
            _send(member, signal.SIGKILL)
        left = members(group, known)
        if not left:
            return True
        known |= sessions_of(left)
        time.sleep(_POLL_S)
    return False


def _frozen(group: int, sessions: Collection[int]) -> list[Member]:
    """Everybody who is left, stopped: who could still start a process could lose it to a session that we don't know."""
    known, seen = set(sessions), set[int]()
    signal_group(group, signal.SIGSTOP)
    for _ in range(20):
        left = members(group, known)
        new = [member for member in left if member.pid not in seen]
        if not new:
            break
        for member in new:
            _send(member, signal.SIGSTOP)
        seen |= {member.pid for member in new}
        known |= sessions_of(left)
    return left


def _send(member: Member, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(member.pid, number)
