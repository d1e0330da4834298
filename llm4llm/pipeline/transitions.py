"""How a job's state may move; nothing else moves one."""

from llm4llm.schema.job import Job, JobStatus
from llm4llm.schema.reason import Reason
from llm4llm.store import Store

# to → from. A running job may be taken again: the process that ran it may be gone, and whoever takes it holds the job's lock.
MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.RUNNING: frozenset({JobStatus.QUEUED, JobStatus.RUNNING}),
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING}),  # interrupted: to be continued
    JobStatus.SUCCEEDED: frozenset({JobStatus.RUNNING}),
    JobStatus.FAILED: frozenset({JobStatus.RUNNING}),
    JobStatus.CANCELLED: frozenset({JobStatus.QUEUED, JobStatus.RUNNING}),
}
ENDED = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED})


def move(store: Store, job_id: str, to: JobStatus, reason: Reason | None, at: str) -> Job:
    """The job after the move, or as somebody else left it if it was no longer in a state that permits the move."""
    store.jobs.move(job_id, MOVES[to], to, reason, at if to in ENDED else None)
    return store.jobs.get(job_id)
