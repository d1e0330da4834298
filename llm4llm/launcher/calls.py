"""System calls that Python does not offer."""

import ctypes
import os
from functools import cache

SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SUBREAPER = 1, 4, 36  # prctl
_DROP_CAPABILITY, _NO_NEW_PRIVILEGES = 24, 38
_LAST_CAPABILITY = 63


class NotConfined(OSError):
    """The kernel refused; nothing may run as if it had not."""


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, doing: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise NotConfined(number, f"{doing}: {os.strerror(number)}")
    return result


def give_up_privileges() -> None:
    """Root's capabilities, from the next program on, and every way to get others. Raises NotConfined."""
    for number in range(_LAST_CAPABILITY + 1):
        # CAP_PERFMON would let it read other processes' environment, past Landlock
        libc().prctl(_DROP_CAPABILITY, number, 0, 0, 0)
    checked(libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "new privileges can't be given up")
