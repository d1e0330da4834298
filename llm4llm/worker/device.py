"""The name of the device that a job is timed on: one name per GPU, known without torch."""

import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from functools import cache

_TIME_LIMIT_S = 20.0
_GPU = re.compile(r"^GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_PART = re.compile(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def device_name(given: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """UUID of the first GPU that a job with these variables sees, else HOST/cpu.

    A job's own CUDA_VISIBLE_DEVICES goes before the worker's. A job that sees several GPUs is named after the first one, which is where
    torch puts what is not told otherwise.
    """
    return first_visible(_listed(), given.get(_VISIBLE, ours.get(_VISIBLE))) or f"{socket.gethostname()}/cpu"


def first_visible(listing: str, visible: str | None) -> str | None:
    """The first visible GPU in what `nvidia-smi -L` prints; None if there is none. `visible` is CUDA_VISIBLE_DEVICES."""
    by_number, names = _parsed(listing)
    first = by_number.get("0") if visible is None else visible.split(",")[0].strip()
    if not first:
        return None
    if first in by_number:
        return by_number[first]
    # CUDA takes the begin of a UUID for the whole of it, as long as it fits one device only
    found = [name for name in names if name.startswith(first)]
    return found[0] if len(found) == 1 else None


def _parsed(listing: str) -> tuple[dict[str, str], list[str]]:
    """Devices by their number, and every device and part of one."""
    by_number: dict[str, str] = {}
    names: list[str] = []
    number = ""
    for line in listing.splitlines():
        if whole := _GPU.match(line):
            number, name = whole.groups()
            by_number[number] = name
            names.append(name)
        elif part := _PART.match(line):
            names.append(part[1])
            if by_number.get(number, "").startswith("GPU-"):
                # a GPU that is cut into parts can only be used through them; CUDA takes the first one
                by_number[number] = part[1]
    return by_number, names


@cache
def _listed() -> str:
    """What nvidia-smi says of this machine, asked once per process; empty without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
