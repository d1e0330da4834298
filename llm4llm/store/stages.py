"""Runs of stages: what each attempt gave, and how long it took."""

from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from llm4llm.errors import StoreUnavailable
from llm4llm.schema.job import StageName
from llm4llm.schema.reason import Reason
from llm4llm.schema.results import Results
from llm4llm.schema.run import StageRun
from llm4llm.store.rows import JobRow, StageRunRow
from llm4llm.store.session import Sessions

_INTERRUPTED = Reason(code="interrupted", text="the process that ran this stage went away before it ended")


class Timed(NamedTuple):
    """How long an attempt took; None while it runs, and for ever if its process was killed."""

    stage: StageName
    status: str
    seconds: float | None
    started_at: str


class Stages:
    """At most one run of a job's stage is ever `finished`; its result is what later stages start from."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def start(self, job_id: str, stage: StageName, at: str) -> int:
        """Open a new attempt and return its number, from 1. An attempt that was left open is closed as interrupted."""
        with self._sessions.transaction() as session:
            of_stage = (StageRunRow.job_id == job_id, StageRunRow.stage == stage.value)
            close_open_runs(session, job_id, at)
            attempt = 1 + (session.scalar(select(func.max(StageRunRow.attempt)).where(*of_stage)) or 0)
            session.add(StageRunRow(job_id=job_id, stage=stage.value, attempt=attempt, status="running", started_at=at))
            return attempt

    def finish(self, run: StageRun) -> None:
        """Close an open attempt with its outcome; LookupError if it is not open, so that a result is never stored twice."""
        reason = run.reason.model_dump(mode="json") if run.reason else None
        change = (
            update(StageRunRow)
            .where(
                StageRunRow.job_id == run.job,
                StageRunRow.stage == run.stage.value,
                StageRunRow.attempt == run.attempt,
                StageRunRow.status == "running",
            )
            .values(status=run.status, result=run.result, reason=reason, seconds=run.seconds, ended_at=run.ended_at)
        )
        with self._sessions.transaction() as session:
            if getattr(session.execute(change), "rowcount", 0) != 1:
                raise LookupError(f"attempt {run.attempt} of {run.stage} of {run.job} is not open")
            if run.status == "finished":
                # the job makes progress: whoever takes it next begins to count anew
                session.execute(update(JobRow).where(JobRow.id == run.job).values(attempts=0))

    def result(self, job_id: str, stage: StageName) -> dict[str, Any] | None:
        """The finished run's result; None as long as there is none."""
        query = select(StageRunRow.result).where(
            StageRunRow.job_id == job_id, StageRunRow.stage == stage.value, StageRunRow.status == "finished"
        )
        with self._sessions.reading() as session:
            return session.scalars(query).first()

    def results(self, job_id: str) -> Results:
        """What every finished stage gave; StoreUnavailable if another version stored it in a form that can't be read any more."""
        query = select(StageRunRow.stage, StageRunRow.result).where(StageRunRow.job_id == job_id, StageRunRow.status == "finished")
        with self._sessions.reading() as session:
            stored = {row.stage: row.result for row in session.execute(query)}
        try:
            return Results.model_validate(stored)
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            what = f"the results of {job_id} were stored by another version of llm4llm ({where})"
            raise StoreUnavailable(what, "run the job again from the start") from error

    def times(self, job_id: str) -> tuple[Timed, ...]:
        """Every attempt without what it gave, in the order in which they were started."""
        query = select(StageRunRow.stage, StageRunRow.status, StageRunRow.seconds, StageRunRow.started_at)
        with self._sessions.reading() as session:
            rows = session.execute(query.where(StageRunRow.job_id == job_id).order_by(StageRunRow.id))
            return tuple(Timed(StageName(row[0]), row[1], row[2], row[3]) for row in rows)

    def runs(self, job_id: str) -> tuple[StageRun, ...]:
        """Every attempt, in the order in which they were started."""
        with self._sessions.reading() as session:
            rows = session.scalars(select(StageRunRow).where(StageRunRow.job_id == job_id).order_by(StageRunRow.id))
            return tuple(_run(row) for row in rows)


def close_open_runs(session: Session, job_id: str, at: str) -> None:
    """End as interrupted whatever a process that is gone has left open."""
    session.execute(
        update(StageRunRow)
        .where(StageRunRow.job_id == job_id, StageRunRow.status == "running")
        .values(status="failed", reason=_INTERRUPTED.model_dump(mode="json"), ended_at=at)
    )


def _run(row: StageRunRow) -> StageRun:
    return StageRun.model_validate(
        {
            "job": row.job_id,
            "stage": row.stage,
            "attempt": row.attempt,
            "status": row.status,
            "result": row.result,
            "reason": row.reason,
            "seconds": row.seconds,
            "started_at": row.started_at,
            "ended_at": row.ended_at,
        }
    )
