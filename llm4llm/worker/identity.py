"""Names of lease holders: they tell the machine, the process and the hold, so that a holder that is gone can be known for it."""

import contextlib
import itertools
import os
import signal
from functools import cache
from pathlib import Path

from llm4llm.kit import sha256_text, start_ticks

_HOLDS = itertools.count(1)


def new_holder() -> str:
    """A name that no other hold has, had or will have: MACHINE.PID.START.NUMBER."""
    return f"{_machine()}.{os.getpid()}.{start_ticks(os.getpid())}.{next(_HOLDS)}"


def gone(holder: str) -> bool:
    """True if the process that held under this name is known to have ended; False also if it ran where we can't look."""
    known = _process(holder)
    return known is not None and start_ticks(known[0]) != known[1]


def end_process(holder: str) -> None:
    """Kill the process that held under this name, if it runs where we can look and is not this one."""
    known = _process(holder)
    if known is None or known[0] == os.getpid() or start_ticks(known[0]) != known[1]:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(known[0], signal.SIGKILL)


def _process(holder: str) -> tuple[int, int] | None:
    """Number and start of a holder's process on this machine."""
    machine, _, rest = holder.partition(".")
    parts = rest.split(".")
    if machine != _machine() or len(parts) != 3 or not all(part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1])


@cache
def _machine() -> str:
    """This boot of this machine, and within it the part whose processes we see: two containers are two machines."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return sha256_text(f"{boot} {os.readlink('/proc/self/ns/pid')}")[:10]
