"""How much memory a child may use on this machine."""

import contextlib
from pathlib import Path

import psutil

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_bytes() -> int:
    """Memory of the machine, or of the container that we run in if that has less."""
    total = int(psutil.virtual_memory().total)
    for file in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(file.read_text()))
    return total
