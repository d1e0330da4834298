"""What every child does to itself first. Limits on memory, processes and time are kept by the parent, from outside."""

import ctypes
import os
import resource
import signal

_PR_SET_PDEATHSIG = 1
_PARENT_VARIABLE = "LLM4LLM_PARENT"  # set by llm4llm.launcher.enter


def confine() -> None:
    """Stand still when the head of the family dies, until whoever started us has ended the rest of it; leave no core dumps.

    Does nothing where the kernel does not know how. Not SIGKILL: what a dead process has started in a session of its own is nobody's
    child any more, and could not be found.
    """
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGSTOP), 0, 0, 0)
    except (OSError, AttributeError):
        return
    finally:
        parent = forget_parent()
    if parent is not None and os.getppid() != parent:
        # it was killed before we could ask to be told
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def forget_parent() -> int | None:
    """The process that started this one, as the environment tells; afterwards the user's code finds nothing of it there."""
    told = os.environ.pop(_PARENT_VARIABLE, None)
    return int(told.partition(".")[0]) if told else None
