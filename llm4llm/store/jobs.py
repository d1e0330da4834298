"""Jobs and how their state moves."""

from collections.abc import Collection
from enum import StrEnum
from typing import Any

from sqlalchemy import select, update

from llm4llm.errors import UnknownJob
from llm4llm.schema.job import Job, JobStatus, Request, StageName
from llm4llm.schema.reason import Reason
from llm4llm.store.rows import JobRow
from llm4llm.store.session import Sessions

_UNLEASED: dict[str, Any] = {"lease_holder": None, "lease_expires_at": None, "not_before": None}


class Queue(StrEnum):
    """Who may take a job without being asked to."""

    WORKERS = "workers"
    FOREGROUND = "foreground"  # nobody: the process that submitted it runs it, or a person has it continued


class Jobs:
    """Stored jobs. Which moves are allowed is the pipeline's rule; that a move happens once only is ours."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add(self, job: Job, queue: Queue = Queue.WORKERS) -> None:
        with self._sessions.transaction() as session:
            session.add(row_of(job, None, queue))

    def get(self, job_id: str) -> Job:
        """The job as it is now; UnknownJob if there is none with that id."""
        with self._sessions.reading() as session:
            row = session.get(JobRow, job_id)
            if row is None:
                raise UnknownJob(job_id)
            return job_of(row)

    def latest(self, limit: int = 50) -> tuple[Job, ...]:
        """Jobs, newest first."""
        with self._sessions.reading() as session:
            rows = session.scalars(select(JobRow).order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(limit))
            return tuple(job_of(row) for row in rows)

    def move(
        self, job_id: str, expected: Collection[JobStatus], to: JobStatus, reason: Reason | None = None, ended_at: str | None = None
    ) -> bool:
        """Compare-and-set: True if the job was in an expected state and has moved, False if somebody else moved it."""
        values: dict[str, Any] = {"reason": reason.model_dump(mode="json") if reason else None, "ended_at": ended_at}
        if to is not JobStatus.RUNNING:
            values |= _UNLEASED
        return self._move(job_id, expected, to, values)

    def put_back(self, job_id: str, expected: Collection[JobStatus], not_before: str | None) -> bool:
        """Like `move` to queued, but not to be taken again before a time."""
        return self._move(job_id, expected, JobStatus.QUEUED, {**_UNLEASED, "not_before": not_before})

    def _move(self, job_id: str, expected: Collection[JobStatus], to: JobStatus, values: dict[str, Any]) -> bool:
        change = update(JobRow).where(JobRow.id == job_id, JobRow.status.in_([status.value for status in expected]))
        with self._sessions.transaction() as session:
            return one_changed(session.execute(change.values(status=to.value, **values)))

    def attempts(self, job_id: str) -> int:
        """How often the job was taken since a stage of it finished last."""
        with self._sessions.reading() as session:
            return session.scalar(select(JobRow.attempts).where(JobRow.id == job_id)) or 0

    def enter(self, job_id: str, stage: StageName) -> None:
        """Name the stage that runs now."""
        with self._sessions.transaction() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(stage=stage.value))

    def ask_to_cancel(self, job_id: str, at: str) -> bool:
        """Leave word that the job is no longer wanted; False if it has already ended. Whoever runs it moves it between two steps."""
        change = (
            update(JobRow)
            .where(JobRow.id == job_id, JobRow.status.in_([JobStatus.QUEUED.value, JobStatus.RUNNING.value]))
            .values(cancel_requested_at=at)
        )
        with self._sessions.transaction() as session:
            return one_changed(session.execute(change))

    def cancel_asked(self, job_id: str) -> bool:
        with self._sessions.reading() as session:
            return session.scalar(select(JobRow.cancel_requested_at).where(JobRow.id == job_id)) is not None


def one_changed(result: object) -> bool:
    """True if a statement has changed a row: the compare-and-set held."""
    return getattr(result, "rowcount", 0) == 1


def row_of(job: Job, owner: str | None, queue: Queue = Queue.WORKERS) -> JobRow:
    """A new row; `owner` is the id of the API key that submitted the job, None for this machine's own user."""
    return JobRow(
        id=job.id,
        request=job.request.model_dump(mode="json"),
        status=job.status.value,
        stage=job.stage.value if job.stage else None,
        reason=job.reason.model_dump(mode="json") if job.reason else None,
        created_at=job.created_at,
        ended_at=job.ended_at,
        owner=owner,
        queue=queue.value,
    )


def job_of(row: JobRow) -> Job:
    """The job that a row describes."""
    return Job(
        id=row.id,
        request=Request.model_validate(row.request),
        status=JobStatus(row.status),
        stage=StageName(row.stage) if row.stage else None,
        reason=Reason.model_validate(row.reason) if row.reason else None,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
