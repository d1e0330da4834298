"""The head of a family: the process that outlives a child for a moment, so that nothing that the child has started outlives it.

Whoever loses its parent becomes a child of the head (PR_SET_CHILD_SUBREAPER), whatever session it has made and whatever it has forgotten
of its environment. So the head knows for sure when nobody is left, and it is not confined: the child can't reach it.
"""

import contextlib
import os
import resource
import select
import signal
import time
from functools import cache
from typing import NoReturn

from llm4llm.launcher.calls import SET_DUMPABLE, SET_SUBREAPER, libc

_ALL_KINDS = 0x40000000  # __WALL: children that end without a signal as well
_PAUSE_S = 0.001
_TRIES, _NEWEST = 20, 500  # bytes
_PATIENCE_S = 10.0  # a process that waits for a device can't be killed


def gather() -> set[int]:
    """Become a head; the signals that were blocked before. From now on none ends us: what is sent to the group is meant for the child."""
    libc().prctl(SET_SUBREAPER, 1, 0, 0, 0)
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()))


def keep(child: int, line: int) -> NoReturn:
    """Wait until the child has ended or the line has, end all that is left, and then end as the child did."""
    _let_go_of_all_but(line)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {signal.SIGCHLD})
    poller = select.poll()
    poller.register(wake, select.POLLIN)
    poller.register(line, select.POLLIN)
    ended: dict[int, int] = {}
    while _reap(ended, child) and child not in ended:
        ready = dict(poller.poll())
        if line in ready:
            break
        os.read(wake, 4096)
    patience = time.monotonic() + _PATIENCE_S
    while _reap(ended, child) and time.monotonic() < patience:
        _kill_below(os.getpid(), set())
        time.sleep(_PAUSE_S)
    _end_as(ended.get(child, 1 << 8))


def _let_go_of_all_but(line: int) -> None:
    """The child's streams and channel end with the child, not with us."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != line:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _reap(ended: dict[int, int], child: int) -> bool:
    """Take in who has ended, and note how the child did; False once there is no process below us."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | _ALL_KINDS)
            if pid == 0:
                return True
            # a child that asks to be traced (PTRACE_TRACEME) tells us of its stops as well
            if pid == child and (os.WIFEXITED(status) or os.WIFSIGNALED(status)):
                ended[pid] = status
    return False


def end_below(first: int, within_s: float) -> bool:
    """End everybody below another process, which has to stand still, and not that one; True once nobody is left there but zombies.

    A head has to die last: once it is gone, whoever loses its parent leaves the family.
    """
    deadline = time.monotonic() + within_s
    ended: set[int] = set()
    while True:
        for _ in range(_TRIES):
            _stop_newest(first)
        if not _kill_below(first, ended):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_S)


def _kill_below(first: int, ended: set[int]) -> bool:
    """Stop everybody below a process, parents before children so that no child is missed, then kill them. The next round finds new ones.

    False if nothing was there but what is in `ended`, which takes up zombies: a head that stands still keeps thousands of them.
    """
    found: list[int] = []
    waiting = [first]
    known = len(ended)
    while waiting:
        new = [pid for pid in _children(waiting.pop()) if pid not in ended]
        for pid in reversed(new):  # the kernel adds to the end: who lives but for a moment is there
            _send(pid, signal.SIGSTOP)
        for pid in new:
            if _is_zombie(pid):
                ended.add(pid)
            else:
                found.append(pid)
                waiting.append(pid)
    for pid in found:
        _send(pid, signal.SIGKILL)
    return bool(found) or len(ended) > known


def _stop_newest(pid: int) -> None:
    """Stop who is at the end of a list of children, before the rest of it is even read as numbers: a zombie more or less is no harm."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
        for word in reversed(file.read()[-_NEWEST:].split()[1:]):
            _send(int(word), signal.SIGSTOP)


def _is_zombie(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", errors="replace") as file:
        # of a process whose first thread has ended, others may go on
        return file.read().rpartition(") ")[2][0] == "Z" and len(os.listdir(f"/proc/{pid}/task")) < 2
    return True


def _children(pid: int) -> list[int]:
    if not _has_lists():
        return _children_by_search(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


@cache
def _has_lists() -> bool:
    """False where the kernel was built without CONFIG_PROC_CHILDREN."""
    return os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def _children_by_search(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", errors="replace") as file:
                if int(file.read().rpartition(") ")[2].split()[1]) == parent:
                    found.append(int(name))
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _end_as(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        libc().prctl(SET_DUMPABLE, 0, 0, 0, 0)  # no core file of ours
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))
