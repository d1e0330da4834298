"""What lies in a job's folder before its stages begin, and what becomes of it after its end."""

import contextlib
from pathlib import Path

from llm4llm.errors import InfraError, JobNotResumable, UnknownJob
from llm4llm.kit import Clock
from llm4llm.pipeline.transitions import ENDED
from llm4llm.schema.job import Job
from llm4llm.service.output import keep_output
from llm4llm.store import Store
from llm4llm.worker.lock import job_lock
from llm4llm.worker.scratch import KEPT, clear_ended, unneeded
from llm4llm.worker.uploads import laid_out


def prepare(job: Job, folder: Path, store: Store) -> Job:
    """The job with paths of this machine in its request. Called whenever the job is taken up, so it leaves the same files each time.

    A UserError ends the job as failed with that error's code and text; an InfraError puts it back.
    """
    return laid_out(job, folder, store)


def settle(job: Job, folder: Path, store: Store, clock: Clock) -> None:
    """Keep what is still wanted of an ended job's folder, and remove the rest. May run twice: a worker can be killed half-way.

    `store` is not fenced: after its end a job is nobody's.
    """
    if job.request.uploaded:
        keep_output(job.id, folder, store, clock)
    clear_ended(folder, job)


def settle_left(home: Path, store: Store, clock: Clock) -> int:
    """Settle the folders of ended jobs whose process was killed before it could; how many there were."""
    root = home / "jobs"
    settled = 0
    for folder in root.iterdir() if root.is_dir() else ():
        with contextlib.suppress(UnknownJob, JobNotResumable, InfraError, OSError):  # one odd folder must not keep a worker from its work
            if {entry.name for entry in folder.iterdir()} <= KEPT:
                continue
            job = store.jobs.get(folder.name)
            if job.status not in ENDED or not unneeded(folder, job):
                continue
            with job_lock(folder, job.id):
                settle(job, folder, store, clock)
            settled += 1
    return settled
