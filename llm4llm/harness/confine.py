"""What every child does to itself first. Limits on memory, processes and time are kept by the parent, from outside."""

import ctypes
import os
import resource
import signal

_PR_SET_PDEATHSIG = 1
_PARENT_VARIABLE = "LLM4LLM_PARENT"  # set by llm4llm.sandbox.start


def confine() -> None:
    """Die with the parent and leave no core dumps. Does nothing where the kernel does not know how."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):
        return
    finally:
        parent = os.environ.pop(_PARENT_VARIABLE, None)
    if parent is not None and os.getppid() != int(parent):
        # it was killed before we could ask to die with it
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
