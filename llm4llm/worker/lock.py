"""One process per job folder: a file lock that the kernel lets go of with the process, however that ends."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from llm4llm.errors import InfraError, JobNotResumable
from llm4llm.service.output import own_folder
from llm4llm.worker.identity import end_process

_POLL_S = 0.1
_DEATH_S = 10.0  # from SIGKILL to the end of the process


@contextmanager
def job_lock(folder: Path, job_id: str, holder: str = "") -> Iterator[None]:
    """Hold a job's folder; JobNotResumable if another process does."""
    with _opened(folder) as file:
        if not _locked(file):
            raise JobNotResumable(job_id, "another process is running it")
        _sign(file, holder)
        yield


@contextmanager
def inherited_lock(folder: Path, holder: str, patience_s: float, pause: Callable[[float], None]) -> Iterator[None]:
    """Hold the folder of a job whose lease we have. Whoever still has the folder has lost the job.

    A process that runs notices and lets go by itself; one that is suspended can't, and its children would go on writing: after
    `patience_s` it is killed, and its guardian ends them. InfraError if it can't be reached from here.
    """
    with _opened(folder) as file:
        waited, killed = 0.0, False
        while not _locked(file):
            if waited >= patience_s and not killed:
                killed = True
                end_process(_place(folder).read_text())
            if waited >= patience_s + _DEATH_S:
                raise InfraError(f"{folder} is held by a process that lost the job", "end that process")
            pause(_POLL_S)
            waited += _POLL_S
        _sign(file, holder)
        yield


def _opened(folder: Path) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    _place(folder).parent.mkdir(exist_ok=True)
    # not inherited by children (PEP 446), so that a survivor could never keep the job; not truncated: it names who holds the lock
    return _place(folder).open("a+")


def _place(folder: Path) -> Path:
    """Where no script can write: whoever could replace the lock would say which process has to be ended."""
    return own_folder(folder) / "lock"


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(file: IO[str], holder: str) -> None:
    file.truncate(0)
    file.write(holder)
    file.flush()
