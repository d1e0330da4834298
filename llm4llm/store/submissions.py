"""New jobs of an owner: stored once per idempotency key, and never more at once than the owner may have."""

from typing import NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError

from llm4llm.errors import IdempotencyConflict, TooManyJobs
from llm4llm.schema.job import Job, JobStatus
from llm4llm.store.jobs import row_of
from llm4llm.store.rows import ApiKeyRow, IdempotencyKeyRow, JobRow
from llm4llm.store.session import Sessions, plain

LOCAL = "local"  # how rows name the owner of jobs that no API key stands for
_ACTIVE = (JobStatus.QUEUED.value, JobStatus.RUNNING.value)


class Once(NamedTuple):
    """An idempotency key and the hash of what it stands for."""

    key: str
    body_sha256: str


class Submissions:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add(self, job: Job, owner: str | None, once: Once | None, concurrent: int) -> str:
        """The id of the stored job: `job`'s own, or that of the job that was stored under the same idempotency key before.

        IdempotencyConflict if that one came from another body; TooManyJobs if the owner has `concurrent` jobs that have not ended.
        """
        try:
            with self._sessions.transaction() as session:
                if owner is not None:
                    # the first statement locks the owner's row: the count below stays true until we commit
                    session.execute(update(ApiKeyRow).where(ApiKeyRow.id == owner).values(last_used_at=job.created_at))
                earlier = self.earlier(owner, once)
                if earlier is not None:
                    return earlier
                if owner is not None and self.active(owner) >= concurrent:
                    raise TooManyJobs(concurrent)
                session.add(row_of(job, owner))
                session.flush()
                if once is not None:
                    session.add(
                        IdempotencyKeyRow(
                            owner=owner or LOCAL, key=once.key, body_sha256=once.body_sha256, job_id=job.id, created_at=job.created_at
                        )
                    )
                    session.flush()
            return job.id
        except IntegrityError:
            # somebody was faster with the same key; whatever else it may be is raised again
            earlier = self.earlier(owner, once)
            if earlier is None:
                raise
            return earlier

    def earlier(self, owner: str | None, once: Once | None) -> str | None:
        """The id of the job that was stored under this key, if any; IdempotencyConflict if it came from another body."""
        if once is None:
            return None
        with self._sessions.reading() as session:
            row = session.get(IdempotencyKeyRow, (owner or LOCAL, plain(once.key)))
            if row is None:
                return None
            if row.body_sha256 != once.body_sha256:
                raise IdempotencyConflict(once.key)
            return row.job_id

    def active(self, owner: str) -> int:
        """Jobs of an owner that have not ended."""
        query = select(func.count()).select_from(JobRow).where(JobRow.owner == owner, JobRow.status.in_(_ACTIVE))
        with self._sessions.reading() as session:
            return session.scalar(query) or 0
