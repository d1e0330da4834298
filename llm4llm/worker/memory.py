"""How much memory a child may use on this machine."""

import contextlib
import os
from pathlib import Path

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_bytes() -> int:
    """Memory of the machine, or of the container that we run in if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(file.read_text()))
    return total
