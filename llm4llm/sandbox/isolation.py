"""What this machine lets us take away from a child: its network, by a namespace of its own, and its view of files, by Landlock."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache

from llm4llm.launcher import seccomp
from llm4llm.launcher.landlock import abi

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Isolation:
    """How a child is cut off from network and files; an empty prefix means that this machine permits no network namespaces."""

    prefix: tuple[str, ...]  # put before the child's command line
    landlock: int  # version of the kernel's interface, 0 without one
    reason: str
    calls: bool = False  # whether system calls can be refused

    @property
    def level(self) -> str:
        """`full`: network and files; `network-off` or `files-only`: one of them; `limits-only`: neither."""
        levels = {(True, True): "full", (True, False): "network-off", (False, True): "files-only", (False, False): "limits-only"}
        return levels[bool(self.prefix), self.landlock > 0]


@cache
def isolation() -> Isolation:
    """Found by trying, once per process: without a user namespace first, because that keeps every device file accessible."""
    version = abi()
    files = f"Landlock {version}" if version else "no Landlock: a kernel from 5.13 on, with landlock in its list of security modules"
    prefix, network = _network()
    calls = seccomp.available()
    refused = "a filter of system calls" if calls else "no filter of system calls: this kernel takes none"
    return Isolation(prefix, version, f"{network}; {files}; {refused}", calls)


def _network() -> tuple[tuple[str, ...], str]:
    unshare = shutil.which("unshare")
    if unshare is None:
        return (), "no network namespace: there is no unshare command; install util-linux"
    for user, named in (((), ""), (("--user", "--map-current-user"), "user and ")):
        if not user and os.geteuid() != 0:
            continue
        # shared memory and queues that are known by a number, not by a file: a filter alone refuses them where there is no such namespace
        for also in (("--ipc",), ()):
            prefix = (unshare, *user, "--net", *also, "--")
            if _works(prefix):
                return prefix, f"own {named}network namespace"
    return (), "no network namespace: this machine does not permit one; allow unprivileged user namespaces"


def _works(prefix: tuple[str, ...]) -> bool:
    try:
        done = subprocess.run([*prefix, "true"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
