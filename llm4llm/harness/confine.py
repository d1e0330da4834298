"""What every child does to itself first. Limits on memory, processes and time are kept by the parent, from outside."""

import ctypes
import resource
import signal

_PR_SET_PDEATHSIG = 1


def confine() -> None:
    """Die with the parent and leave no core dumps. Does nothing where the kernel does not know how."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
