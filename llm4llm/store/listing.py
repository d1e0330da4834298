"""Jobs as their owners see them: pages, snapshots that are cheap to poll, removal."""

from dataclasses import dataclass

from sqlalchemy import delete, func, select

from llm4llm.schema.job import Job, JobStatus
from llm4llm.store.jobs import job_of
from llm4llm.store.rows import EventRow, JobRow
from llm4llm.store.session import Sessions


@dataclass(frozen=True)
class Mark:
    """What changes whenever something happens to a job; equal marks mean that nothing did."""

    owner: str | None
    status: JobStatus
    stage: str | None
    cancel_requested: bool
    last_event: int  # 0 if there is none

    @property
    def ended(self) -> bool:
        return self.status not in (JobStatus.QUEUED, JobStatus.RUNNING)


@dataclass(frozen=True)
class Wanted:
    """Which jobs a page shows; `before` is the (created_at, id) of the last one on the page before."""

    owner: str | None = None
    everybody: bool = False
    status: JobStatus | None = None
    before: tuple[str, str] | None = None
    limit: int = 50


# read as columns, not as entities: this is what every poll does
_MARK = (
    JobRow.id,
    JobRow.owner,
    JobRow.status,
    JobRow.stage,
    JobRow.cancel_requested_at,
    select(func.max(EventRow.id)).where(EventRow.job_id == JobRow.id).correlate(JobRow).scalar_subquery(),
)


class Listing:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def marks(self, job_ids: tuple[str, ...]) -> dict[str, Mark]:
        """Those of the jobs that exist."""
        with self._sessions.reading() as session:
            rows = session.execute(select(*_MARK).where(JobRow.id.in_(job_ids))).all()
        return {row[0]: Mark(row[1], JobStatus(row[2]), row[3], row[4] is not None, row[5] or 0) for row in rows}

    def page(self, wanted: Wanted) -> tuple[Job, ...]:
        """Newest first."""
        query = select(JobRow).order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(wanted.limit)
        if not wanted.everybody:
            query = query.where(JobRow.owner.is_(None) if wanted.owner is None else JobRow.owner == wanted.owner)
        if wanted.status is not None:
            query = query.where(JobRow.status == wanted.status.value)
        if wanted.before is not None:
            at, job_id = wanted.before
            query = query.where((JobRow.created_at < at) | ((JobRow.created_at == at) & (JobRow.id < job_id)))
        with self._sessions.reading() as session:
            return tuple(job_of(row) for row in session.scalars(query))

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        with self._sessions.reading() as session:
            found = session.execute(select(JobRow.status, func.count()).group_by(JobRow.status)).all()
            return {status.value: 0 for status in JobStatus} | {row[0]: row[1] for row in found}

    def remove(self, job_id: str) -> bool:
        """Remove a job that has ended, with everything stored about it; False if it is still active. Blobs stay: others may share them."""
        active = (JobStatus.QUEUED.value, JobStatus.RUNNING.value)
        with self._sessions.transaction() as session:
            gone = session.execute(delete(JobRow).where(JobRow.id == job_id, JobRow.status.not_in(active)))
            return getattr(gone, "rowcount", 0) == 1
