"""What lies in a job's folder before its stages begin, and what becomes of it after its end."""

import contextlib
import logging
import os
from pathlib import Path

from llm4llm.errors import JobNotResumable, UnknownJob
from llm4llm.kit import Clock
from llm4llm.pipeline.transitions import ENDED
from llm4llm.schema.job import Job
from llm4llm.service.output import OWN, keep_output
from llm4llm.store import Store
from llm4llm.worker.lock import job_lock
from llm4llm.worker.scratch import clear_ended, unneeded
from llm4llm.worker.uploads import laid_out

_LOG = logging.getLogger(__name__)


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
    for name in os.listdir(root) if root.is_dir() else ():
        if name.endswith(OWN):
            continue
        try:
            settled += _settled_now(name, root / name, store, clock)
        except Exception:
            # whatever lies in one folder, it keeps no worker from its work
            _LOG.exception("the folder of an ended job can't be settled", extra={"job": name})
    return settled


def _settled_now(name: str, folder: Path, store: Store, clock: Clock) -> bool:
    with contextlib.suppress(UnknownJob, JobNotResumable):
        if not unneeded(folder, None):
            return False
        job = store.jobs.get(name)
        if job.status in ENDED and unneeded(folder, job):
            with job_lock(folder, job.id):
                settle(job, folder, store, clock)
            return True
    return False
