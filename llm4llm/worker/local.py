"""Run one job in this process because a person asked for it: real children, real store, nothing left behind however it ends."""

import random

from llm4llm.errors import InfraError, JobNotResumable
from llm4llm.kit import Bell, SystemClock
from llm4llm.pipeline.transitions import ENDED
from llm4llm.schema.job import Job
from llm4llm.settings import Settings
from llm4llm.stages.tools import Progress
from llm4llm.store import open_store
from llm4llm.worker.folder import settle
from llm4llm.worker.held import Station, Walk, hand_back, run_held
from llm4llm.worker.identity import gone, new_holder
from llm4llm.worker.keeping import new_hold
from llm4llm.worker.lock import job_lock
from llm4llm.worker.scratch import job_folder
from llm4llm.worker.signals import orderly_end
from llm4llm.worker.walk import walk


def run_job(job_id: str, settings: Settings, progress: Progress, walk: Walk = walk) -> Job:
    """The job at its end, from wherever it was; one that has ended is returned as it is.

    UnknownJob if there is none, JobNotResumable while another process runs it. KeyboardInterrupt (SIGINT, SIGTERM, SIGHUP) and InfraError
    pass on with the job queued, to be continued; LeaseLost with the job in the hands of whoever took it meanwhile. Every child has ended
    when this returns or raises.
    """
    store = open_store(settings.database, settings.blobs)
    station = Station(settings, store, SystemClock(), random.Random())  # noqa: S311 (spreads waiting in time)
    try:
        job = store.jobs.get(job_id)
        if job.status in ENDED:
            return job
        holder, folder = new_holder(), job_folder(settings.home, job_id)
        # the lock tells at once that a process of this home has gone; the lease is what others go by
        with job_lock(folder, job_id, holder), orderly_end(), Bell() as never:
            if not store.leases.take(job_id, new_hold(holder, station.clock, settings.lease_s), gone):
                raise JobNotResumable(job_id, "another process is running it")
            try:
                job = run_held(job, holder, station, walk, progress, never)
            except BaseException as error:
                hand_back(station, job_id, holder, counts=isinstance(error, InfraError))
                raise
            if job.status in ENDED:
                settle(job, folder, store, station.clock)
            return job
    finally:
        store.close()
