"""Seccomp: a filter of system calls that reach other processes, or parts of the kernel that no script needs, where Landlock does not look.

Numbers and structures from the kernel's <linux/seccomp.h>, <linux/filter.h> and <asm/unistd.h>.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence

from llm4llm.launcher.calls import checked, libc

_SET_SECCOMP, _MODE_FILTER = 22, 2  # prctl
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
_ALLOW, _DENY, _UNKNOWN_CALL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_X32 = 0x40000000
_NAMESPACES = 0x7E020000  # CLONE_NEW*
_NEW_TIME = 0x80  # in unshare alone: clone has the signal of the end there

# x86_64, aarch64
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED = {
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    # memory, locks and queues that all processes of a user share and that outlive them; whoever guesses a number needs no "get"
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # makes sockets of any family, where no filter looks
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
# permitted with these arguments alone, given as (which, value): on the caller itself
_ON_ITSELF: dict[str, tuple[tuple[int, int], tuple[tuple[int, int], ...]]] = {
    "prlimit64": ((302, 261), ((0, 0),)),
    "setpriority": ((141, 140), ((0, 0), (1, 0))),
    "ioprio_set": ((251, 30), ((0, 1), (1, 0))),
    "migrate_pages": ((256, 238), ((0, 0),)),
    "move_pages": ((279, 239), ((0, 0),)),
}
# a lease on a file, for which reading is enough, makes everybody who opens it wait for 45 seconds; F_NOTIFY tells what others do
_FCNTL, _TELLING = (72, 25), (1024, 1026)
# a namespace of networks does not hold for every family: AF_VSOCK reaches the machine's host. UNIX, INET, INET6, NETLINK
_SOCKET, _SOCKET_PAIR, _FAMILIES = (41, 198), (53, 199), (1, 2, 10, 16)
_UNSHARE, _CLONE, _CLONE3 = (272, 97), (56, 220), (435, 435)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def available() -> bool:
    """True if this kernel takes filters and we know its numbers."""
    if os.uname().machine not in _ARCHITECTURES or sys.maxsize < 1 << 32:
        return False
    libc().prctl(_SET_SECCOMP, _MODE_FILTER, None, 0, 0)  # no filter at all: EFAULT where one is taken
    return ctypes.get_errno() == errno.EFAULT


def refuse_calls() -> None:
    """From now on, for this process and all that it starts. New privileges have to be given up before. Raises NotConfined."""
    code = _filter(os.uname().machine)
    program = _Program(len(code) // 8, code)
    checked(libc().prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0), "system calls can't be given up")


def _filter(machine: str) -> bytes:
    column = list(_ARCHITECTURES).index(machine)
    code = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, _ARCHITECTURES[machine], yes=1),
        _step(_RETURN, _DENY),  # another one's numbers mean other calls
        _step(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [_step(_AT_LEAST, _X32, no=1), _step(_RETURN, _DENY)]
    for numbers in _REFUSED.values():
        code += [_step(_EQUAL, numbers[column], no=1), _step(_RETURN, _DENY)]
    for numbers, wanted in _ON_ITSELF.values():
        code += _only_with(numbers[column], wanted)
    code += _by_value(_FCNTL[column], 1, _TELLING, among=_DENY, others=_ALLOW)
    for numbers in (_SOCKET, _SOCKET_PAIR):
        code += _by_value(numbers[column], 0, _FAMILIES, among=_ALLOW, others=_DENY)
    code += _without_bits(_UNSHARE[column], _NAMESPACES | _NEW_TIME)
    code += _without_bits(_CLONE[column], _NAMESPACES)
    # its flags lie in memory, where no filter can look; libraries go on with clone
    code += [_step(_EQUAL, _CLONE3[column], no=1), _step(_RETURN, _UNKNOWN_CALL)]
    return b"".join([*code, _step(_RETURN, _ALLOW)])


def _only_with(number: int, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
    """All of these arguments are integers of 32 bits; the kernel ignores what lies above."""
    code = [_step(_EQUAL, number, no=2 * len(wanted) + 2)]
    for left, (which, value) in zip(range(len(wanted) - 1, -1, -1), wanted):
        code += [_argument(which), _step(_EQUAL, value, yes=0 if left else 1, no=2 * left)]
    return [*code, _step(_RETURN, _DENY), _step(_RETURN, _ALLOW)]


def _by_value(number: int, which: int, values: Sequence[int], among: int, others: int) -> list[bytes]:
    """Two answers to a call: whether an argument of 32 bits is one of these values."""
    code = [_step(_EQUAL, number, no=len(values) + 3), _argument(which)]
    code += [_step(_EQUAL, value, yes=left) for left, value in zip(range(len(values), 0, -1), values)]
    return [*code, _step(_RETURN, others), _step(_RETURN, among)]


def _without_bits(number: int, bits: int) -> list[bytes]:
    return [
        _step(_EQUAL, number, no=4),
        _argument(0),
        _step(_ANY_BIT, bits, no=1),
        _step(_RETURN, _DENY),
        _step(_RETURN, _ALLOW),
    ]


def _argument(which: int) -> bytes:
    return _step(_LOAD, _ARGUMENTS_AT + 8 * which)  # the low half: both architectures are little-endian


def _step(operation: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction: `yes` and `no` are how many of the next ones a comparison skips."""
    return struct.pack("=HBBI", operation, yes, no, value)
