"""Who runs which job, and who times on which device: each for a while, to be renewed."""

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, StageName
from llm4llm.schema.reason import Reason
from llm4llm.store.jobs import Queue, job_of, one_changed
from llm4llm.store.rows import DeviceLeaseRow, EventRow, JobRow
from llm4llm.store.session import Sessions
from llm4llm.store.stages import close_open_runs


class Hold(NamedTuple):
    """A lease that is asked for: by whom, now, and until when. A holder's name stands for one hold and is never used again."""

    holder: str
    now: str
    until: str


class JobLeases:
    """A job is leased exactly while it is running. Every change here is a compare-and-set on its holder."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def claim(self, hold: Hold, max_attempts: int) -> Job | None:
        """The oldest job that waits for a worker or whose worker has let its lease run out, now running and ours; None if there is none.

        One that was taken `max_attempts` times since it made progress ends as failed instead. Two claims at once never get the same job:
        PostgreSQL's skip rows that another claim has locked, SQLite's come one after the other.
        """
        waiting = _claimable(hold.now)
        with self._sessions.reading() as session:
            # most polls find nothing, and then no lock is needed
            if session.scalar(select(JobRow.id).where(waiting).limit(1)) is None:
                return None
        oldest = select(JobRow).where(waiting).order_by(JobRow.created_at, JobRow.id).limit(1).with_for_update(skip_locked=True)
        while True:
            with self._sessions.transaction() as session:
                row = session.scalars(oldest).one_or_none()
                if row is None:
                    return None
                close_open_runs(session, row.id, hold.now)
                if row.attempts < max_attempts or row.cancel_requested_at is not None:
                    _give(row, hold, row.attempts + 1)
                    return job_of(row)
                _end_poison(session, row, hold.now)

    def take(self, job_id: str, hold: Hold, gone: Callable[[str], bool]) -> bool:
        """Lease one job because a person asked for it, whatever its queue; False if somebody else holds it or it has ended.

        `gone` tells of a holder whose lease has not run out whether its process is known to have ended. The attempts count from 1 again.
        """
        with self._sessions.transaction() as session:
            row = session.scalar(select(JobRow).where(JobRow.id == job_id).with_for_update())
            if row is None or row.status not in (JobStatus.QUEUED.value, JobStatus.RUNNING.value):
                return False
            held = row.lease_holder is not None and (row.lease_expires_at or "") > hold.now
            if held and not gone(str(row.lease_holder)):
                return False
            _give(row, hold, 1)
            return True

    def renew(self, job_id: str, hold: Hold) -> bool:
        """Extend the lease; False if it is not this holder's any more."""
        change = update(JobRow).where(JobRow.id == job_id, JobRow.lease_holder == hold.holder).values(lease_expires_at=hold.until)
        with self._sessions.transaction() as session:
            return one_changed(session.execute(change))

    def hand_back(self, job_id: str, hold: Hold, not_before: str | None, counts: bool) -> bool:
        """Put a job that we hold back into the queue, its running stage closed as interrupted; False if it is not ours any more.

        `counts` says whether this was an attempt that failed; a worker that only has to go is not the job's fault.
        """
        with self._sessions.transaction() as session:
            row = session.scalar(select(JobRow).where(JobRow.id == job_id, JobRow.lease_holder == hold.holder).with_for_update())
            if row is None:
                return False
            close_open_runs(session, job_id, hold.now)
            row.status, row.lease_holder, row.lease_expires_at, row.not_before = JobStatus.QUEUED.value, None, None, not_before
            if not counts:
                row.attempts = max(0, row.attempts - 1)
            return True

    def held(self) -> dict[str, str]:
        """Holders by job, whether or not their leases have run out."""
        with self._sessions.reading() as session:
            rows = session.execute(select(JobRow.id, JobRow.lease_holder).where(JobRow.lease_holder.is_not(None)))
            return {row.id: row.lease_holder for row in rows if row.lease_holder}

    def waiting(self, now: str) -> int:
        """How many jobs a worker could take now."""
        with self._sessions.reading() as session:
            return session.scalar(select(func.count()).select_from(JobRow).where(_claimable(now))) or 0


class DeviceLeases:
    """One process at a time measures on a device."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def take(self, device: str, hold: Hold, gone: Callable[[str], bool]) -> bool:
        """Lease a device that is free, whose lease has run out, or whose holder is known to have ended; False otherwise."""
        with self._sessions.transaction() as session:
            insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
            values = {"device": device, "holder": hold.holder, "expires_at": hold.until}
            if one_changed(session.execute(insert(DeviceLeaseRow).values(values).on_conflict_do_nothing())):
                return True
            row = session.scalar(select(DeviceLeaseRow).where(DeviceLeaseRow.device == device).with_for_update())
            if row is None or (row.expires_at > hold.now and row.holder != hold.holder and not gone(row.holder)):
                return False
            row.holder, row.expires_at = hold.holder, hold.until
            return True

    def renew(self, device: str, hold: Hold) -> bool:
        """Extend the lease; False if it is not this holder's any more."""
        ours = (DeviceLeaseRow.device == device, DeviceLeaseRow.holder == hold.holder)
        with self._sessions.transaction() as session:
            return one_changed(session.execute(update(DeviceLeaseRow).where(*ours).values(expires_at=hold.until)))

    def release(self, device: str, holder: str) -> bool:
        """Free a device; False if it is not this holder's any more."""
        ours = (DeviceLeaseRow.device == device, DeviceLeaseRow.holder == holder)
        with self._sessions.transaction() as session:
            return one_changed(session.execute(delete(DeviceLeaseRow).where(*ours)))

    def held(self) -> dict[str, str]:
        """Holders by device, whether or not their leases have run out."""
        with self._sessions.reading() as session:
            return {row.device: row.holder for row in session.scalars(select(DeviceLeaseRow))}


def _claimable(now: str) -> ColumnElement[bool]:
    # who asked for a job to be cancelled does not wait for the end of its back-off
    due = or_(JobRow.not_before.is_(None), JobRow.not_before <= now, JobRow.cancel_requested_at.is_not(None))
    queued = and_(JobRow.status == JobStatus.QUEUED.value, due)
    left = and_(JobRow.status == JobStatus.RUNNING.value, or_(JobRow.lease_expires_at.is_(None), JobRow.lease_expires_at <= now))
    return and_(JobRow.queue == Queue.WORKERS.value, or_(queued, left))


def _give(row: JobRow, hold: Hold, attempts: int) -> None:
    row.status, row.reason, row.attempts = JobStatus.RUNNING.value, None, attempts
    row.lease_holder, row.lease_expires_at, row.not_before = hold.holder, hold.until, None


def _end_poison(session: Session, row: JobRow, now: str) -> None:
    where = f", the last time in its {row.stage} stage" if row.stage else ""
    times = "once" if row.attempts == 1 else f"{row.attempts} times"
    reason = Reason(code="poison", text=f"given up: it was begun {times} and no stage came to its end{where}; see the worker's log")
    row.status, row.reason, row.ended_at = JobStatus.FAILED.value, reason.model_dump(mode="json"), now
    row.lease_holder, row.lease_expires_at, row.not_before = None, None, None
    stage = StageName(row.stage) if row.stage else None
    event = Event(job=row.id, kind="decision", stage=stage, text=f"{JobStatus.FAILED.value}: {reason.text}")
    session.add(EventRow(job_id=row.id, at=now, event=event.model_dump(mode="json")))
