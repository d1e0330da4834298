"""What this machine lets us take away from a child: its network, by a namespace of its own."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Isolation:
    """How a child is cut off from the network; an empty prefix means that this machine does not permit it."""

    level: str  # "network-off" or "limits-only"
    prefix: tuple[str, ...]  # put before the child's command line
    reason: str


@cache
def isolation() -> Isolation:
    """Found by trying, once per process: without a user namespace first, because that keeps every device file accessible."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return Isolation("limits-only", (), "there is no unshare command; install util-linux")
    own_network = (unshare, "--net", "--")
    own_user = (unshare, "--user", "--map-current-user", "--net", "--")
    if os.geteuid() == 0 and _works(own_network):
        return Isolation("network-off", own_network, "own network namespace")
    if _works(own_user):
        return Isolation("network-off", own_user, "own user and network namespace")
    return Isolation("limits-only", (), "this machine does not permit namespaces of our own; allow unprivileged user namespaces")


def _works(prefix: tuple[str, ...]) -> bool:
    try:
        done = subprocess.run([*prefix, "true"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
