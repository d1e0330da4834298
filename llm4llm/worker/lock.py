"""One worker per job: a file lock that the kernel lets go of with the process, however that ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llm4llm.errors import JobNotResumable


@contextmanager
def job_lock(folder: Path, job_id: str) -> Iterator[None]:
    """Hold a job's folder; JobNotResumable if another process does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            # not inherited by children (PEP 446), so that a survivor could never keep the job
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobNotResumable(job_id, "another process is running it") from error
        yield
