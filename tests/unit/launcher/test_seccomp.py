"""The filter of system calls, run by hand: each architecture's, wherever the tests run."""

import errno
import fcntl
import socket
import struct

import pytest

from llm4llm.launcher import seccomp

ALLOWED, REFUSED, UNKNOWN = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
MACHINES = list(seccomp._ARCHITECTURES)


def outcome(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel would do, by its documentation of the classic BPF machine."""
    data = struct.pack(
        "=iIQ6Q",
        number,
        seccomp._ARCHITECTURES[machine] if architecture is None else architecture,
        0,
        *(argument % (1 << 64) for argument in (*arguments, *[0] * (6 - len(arguments)))),
    )
    code = list(struct.iter_unpack("=HBBI", seccomp._filter(machine)))
    held, at = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
        else:
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
            at += yes if true else no


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_on_itself_are_allowed_and_on_others_refused(machine: str) -> None:
    column = MACHINES.index(machine)
    for numbers, wanted in seccomp._ON_ITSELF.values():
        fitting = [0] * 6
        for which, value in wanted:
            fitting[which] = value
        assert outcome(machine, numbers[column], *fitting) == ALLOWED
        for which, value in wanted:
            assert outcome(machine, numbers[column], *fitting[:which], value + 5, *fitting[which + 1 :]) == REFUSED
            # the kernel looks at 32 bits
            assert outcome(machine, numbers[column], *fitting[:which], value + (1 << 32), *fitting[which + 1 :]) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_namespaces_are_refused_and_threads_are_not(machine: str) -> None:
    column = MACHINES.index(machine)
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert outcome(machine, seccomp._UNSHARE[column], flag | 0x400) == REFUSED
        assert outcome(machine, seccomp._CLONE[column], flag | 17) == REFUSED
    assert outcome(machine, seccomp._UNSHARE[column], 0x80) == REFUSED
    assert outcome(machine, seccomp._UNSHARE[column], 0x400) == ALLOWED
    assert outcome(machine, seccomp._CLONE[column], 0x3D0F00) == ALLOWED  # as pthread_create asks
    assert outcome(machine, seccomp._CLONE3[column]) == UNKNOWN


@pytest.mark.parametrize("machine", MACHINES)
def test_leases_and_notices_are_refused_and_locks_are_not(machine: str) -> None:
    number = seccomp._FCNTL[MACHINES.index(machine)]
    for command in (fcntl.F_SETLEASE, fcntl.F_NOTIFY):
        assert outcome(machine, number, 3, command) == REFUSED
        assert outcome(machine, number, 3, command + (1 << 32)) == REFUSED  # the kernel looks at 32 bits
    for command in (fcntl.F_GETLEASE, fcntl.F_SETLK, fcntl.F_SETFD, fcntl.F_SETPIPE_SZ, fcntl.F_DUPFD_CLOEXEC):
        assert outcome(machine, number, 3, command) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_of_families_that_a_namespace_of_networks_holds(machine: str) -> None:
    for numbers in (seccomp._SOCKET, seccomp._SOCKET_PAIR):
        permitted = [family for family in range(64) if outcome(machine, numbers[MACHINES.index(machine)], family, 1) == ALLOWED]
        assert permitted == [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_rest(machine: str) -> None:
    column = MACHINES.index(machine)
    for numbers in seccomp._REFUSED.values():
        assert outcome(machine, numbers[column]) == REFUSED
    ruled = {numbers[column] for numbers in seccomp._REFUSED.values()} | {numbers[column] for numbers, _ in seccomp._ON_ITSELF.values()}
    ruled |= {seccomp._SOCKET[column], seccomp._SOCKET_PAIR[column]}
    ruled |= {seccomp._UNSHARE[column], seccomp._CLONE[column], seccomp._CLONE3[column]}
    assert all(outcome(machine, number) == ALLOWED for number in range(470) if number not in ruled)
    assert outcome(machine, 0, architecture=0x40000003) == REFUSED


def test_x32_is_refused() -> None:
    assert outcome("x86_64", 0x40000000) == REFUSED
