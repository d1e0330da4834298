"""What happened to a job, in order."""

from typing import NamedTuple

from sqlalchemy import func, select

from llm4llm.schema.event import Event
from llm4llm.store.rows import EventRow
from llm4llm.store.session import Sessions


class Stored(NamedTuple):
    """An event with its place in the order of all events, and when it was stored."""

    id: int
    at: str
    event: Event


class Events:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add(self, event: Event, at: str) -> None:
        with self._sessions.transaction() as session:
            session.add(EventRow(job_id=event.job, at=at, kind=event.kind, event=event.model_dump(mode="json")))

    def count(self, job_id: str) -> int:
        """How many events a job has."""
        with self._sessions.reading() as session:
            return session.scalar(select(func.count()).select_from(EventRow).where(EventRow.job_id == job_id)) or 0

    def last_of(self, job_id: str, kind: str) -> Event | None:
        """The newest event of a kind; None if there is none."""
        query = select(EventRow).where(EventRow.job_id == job_id, EventRow.kind == kind).order_by(EventRow.id.desc()).limit(1)
        with self._sessions.reading() as session:
            row = session.scalar(query)
            return None if row is None else Event.model_validate(row.event)

    def of(self, job_id: str) -> tuple[Event, ...]:
        """A job's events, oldest first."""
        with self._sessions.reading() as session:
            rows = session.scalars(select(EventRow).where(EventRow.job_id == job_id).order_by(EventRow.id))
            return tuple(Event.model_validate(row.event) for row in rows)

    def after(self, job_id: str, last_id: int, limit: int = 500) -> tuple[Stored, ...]:
        """A job's events that were stored later than the one with that id, oldest first."""
        query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > last_id).order_by(EventRow.id).limit(limit)
        with self._sessions.reading() as session:
            return tuple(Stored(row.id, row.at, Event.model_validate(row.event)) for row in session.scalars(query))
