"""Landlock: a process gives up access to files, for itself and everything it starts, and can't take it back.

Numbers and structures from the kernel's <linux/landlock.h> (see "Landlock: unprivileged access control" in the kernel's documentation).
The standard library alone: it runs in a process of its own, right before the child's program (see enter.py). The one package on the
index that wraps these three calls is a development release without networks and scopes, so they are made here.
"""

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from llm4llm.launcher.calls import NotConfined, checked, libc

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_TCP = 0b11  # bind and connect
_SCOPES = 0b11  # abstract UNIX sockets and signals of processes outside

_OWN_THREADS = Path("/proc/self/task")
_DEV = Path("/dev")
# no terminals, no disks, nothing of the kernel's: a job could write on the operator's terminal. /dev/fd and /dev/stdout are links
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "dri", "kfd", "dxg")


@cache
def abi() -> int:
    """Version of the kernel's interface; 0 where there is none."""
    return max(0, int(libc().syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)))


def restrict(
    hidden: Sequence[Path], visible: Sequence[Path], writable: Sequence[Path], network: bool, pinned: Mapping[str, Sequence[int]]
) -> None:
    """Give up: the content of `hidden` folders except what is `visible`, devices but for a few, writing anywhere but below `writable`,
    TCP unless `network`, signals to other processes, and looking into them (/proc/PID/environ). A path in `pinned` has to be that device
    and inode, and no link. New privileges have to be given up before. Raises NotConfined.
    """
    version = abi()
    if version == 0:
        raise NotConfined("this kernel has no Landlock")
    handled = (1 << 13) - 1 | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0) | (_IOCTL_DEV if version >= 5 else 0)
    attributes = [handled]
    if version >= 4:
        attributes.append(0 if network else _TCP)
    if version >= 6:
        attributes.append(_SCOPES)
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = checked(libc().syscall(_CREATE_RULESET, packed, len(packed), 0), "no ruleset")
    try:
        for path in (*_everything_but([_DEV, *(path.resolve() for path in hidden)]), *visible):
            _allow(ruleset, path, _READ & handled, pinned.get(str(path)))
        for path in (*writable, *_devices()):
            _allow(ruleset, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK), pinned.get(str(path)))
        # CUDA gives its threads names there and does not start without. Held open for the program's life: a rule holds for this inode,
        # and the kernel may make another one once nobody looks at it
        _allow(ruleset, _OWN_THREADS, handled & (_READ | _WRITE_FILE | _TRUNCATE), None)
        os.set_inheritable(os.open(_OWN_THREADS, os.O_PATH), True)
        checked(libc().syscall(_RESTRICT_SELF, ruleset, 0), "access can't be given up")
    finally:
        os.close(ruleset)


def _everything_but(hidden: list[Path]) -> Iterator[Path]:
    """What lies beside the hidden folders, at every level above them: a rule holds for everything below, so none may lie on their way."""
    ancestors = {parent for path in hidden for parent in path.parents}
    if not ancestors:
        yield Path("/")
        return
    for folder in sorted(ancestors):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                if path in ancestors or path in hidden:
                    continue
                target = path.resolve() if entry.is_symlink() else path
                if target not in ancestors and not any(target.is_relative_to(one) for one in hidden):
                    yield path


def _devices() -> Iterator[Path]:
    yield from (_DEV / name for name in _DEVICES)
    with contextlib.suppress(OSError):
        yield from (_DEV / name for name in os.listdir(_DEV) if name.startswith("nvidia"))


def _allow(ruleset: int, path: Path, access: int, pin: Sequence[int] | None) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if pin is not None else 0))
    except OSError:
        return  # what is not there needs no permission
    try:
        found = os.fstat(opened)
        if pin is not None and (found.st_dev, found.st_ino) != tuple(pin):
            raise NotConfined(errno.EPERM, f"{path} was replaced")
        if not stat.S_ISDIR(found.st_mode):
            access &= _OF_A_FILE
        rule = struct.pack("=Qi", access, opened)
        checked(libc().syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), f"no rule for {path}")
    finally:
        os.close(opened)
