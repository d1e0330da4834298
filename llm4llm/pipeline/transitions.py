"""How a job's state may move; nothing else moves one."""

from datetime import timedelta

from llm4llm.kit import Clock, iso
from llm4llm.schema.job import Job, JobStatus
from llm4llm.schema.reason import Reason
from llm4llm.store import Store

# to → from. A running job may be taken again: the process that ran it may be gone, and whoever takes it holds the job's lease.
MOVES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.RUNNING: frozenset({JobStatus.QUEUED, JobStatus.RUNNING}),
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING}),  # interrupted: to be continued
    JobStatus.SUCCEEDED: frozenset({JobStatus.RUNNING}),
    JobStatus.FAILED: frozenset({JobStatus.RUNNING}),
    JobStatus.CANCELLED: frozenset({JobStatus.QUEUED, JobStatus.RUNNING}),
}
_FIRST_BACK_OFF_S = 5.0
_LONGEST_BACK_OFF_S = 300.0
ENDED = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED})


def move(store: Store, job_id: str, to: JobStatus, reason: Reason | None, at: str) -> Job:
    """The job after the move, or as somebody else left it if it was no longer in a state that permits the move."""
    store.jobs.move(job_id, MOVES[to], to, reason, at if to in ENDED else None)
    return store.jobs.get(job_id)


def put_back(store: Store, job_id: str, clock: Clock) -> None:
    """Queue a job again after a fault of the machine; the more often it was taken in vain, the later it may be taken again."""
    store.jobs.put_back(job_id, MOVES[JobStatus.QUEUED], not_before(store.jobs.attempts(job_id), clock))


def not_before(attempts: int, clock: Clock) -> str:
    """When a job may be taken again that was taken so often without progress."""
    seconds = min(_LONGEST_BACK_OFF_S, _FIRST_BACK_OFF_S * 2 ** max(0, attempts - 1))
    return iso(clock.now() + timedelta(seconds=seconds))
