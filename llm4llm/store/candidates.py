"""Tasks, the candidates proposed for them, and the judge's answers."""

from typing import Literal

from pydantic import TypeAdapter
from sqlalchemy import func, select

from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Trial
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Verdict
from llm4llm.store.rows import CandidateRow, TaskRow, VerdictRow
from llm4llm.store.session import Sessions, plain

_VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)

JudgedIn = Literal["episode", "verdict"]


class Candidates:
    """Nothing here is ever overwritten: a second answer on the same candidate in the same stage is refused by its key."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add_tasks(self, job_id: str, tasks: tuple[Task, ...]) -> None:
        with self._sessions.transaction() as session:
            for position, task in enumerate(tasks):
                session.add(TaskRow(job_id=job_id, id=task.id, position=position, facts=task.model_dump(mode="json")))

    def tasks(self, job_id: str) -> tuple[Task, ...]:
        with self._sessions.reading() as session:
            rows = session.scalars(select(TaskRow).where(TaskRow.job_id == job_id).order_by(TaskRow.position))
            return tuple(Task.model_validate(row.facts) for row in rows)

    def record(self, job_id: str, trial: Trial, stage: JudgedIn, at: str) -> None:
        """Store the judge's answer, and the candidate with it if it is new."""
        candidate = trial.candidate
        with self._sessions.transaction() as session:
            if session.get(CandidateRow, (job_id, candidate.id)) is None:
                position = session.scalar(select(func.count()).select_from(CandidateRow).where(CandidateRow.job_id == job_id)) or 0
                session.add(
                    CandidateRow(
                        job_id=job_id,
                        id=candidate.id,
                        task_id=candidate.task,
                        position=position,
                        sha256=candidate.sha256,
                        author=plain(candidate.author),
                        hypothesis=plain(candidate.hypothesis),
                        parent=candidate.parent,
                    )
                )
                session.flush()
            verdict = trial.verdict.model_dump(mode="json")
            session.add(VerdictRow(job_id=job_id, candidate_id=candidate.id, stage=stage, verdict=verdict, at=at))

    def all(self, job_id: str) -> tuple[Candidate, ...]:
        """Candidates in the order in which they were proposed."""
        with self._sessions.reading() as session:
            rows = session.scalars(select(CandidateRow).where(CandidateRow.job_id == job_id).order_by(CandidateRow.position))
            return tuple(_candidate(row) for row in rows)

    def trials(self, job_id: str, stage: JudgedIn) -> tuple[Trial, ...]:
        """Candidates that a stage has judged, with its answers, in the order of proposal."""
        query = (
            select(CandidateRow, VerdictRow)
            .join(VerdictRow, (VerdictRow.job_id == CandidateRow.job_id) & (VerdictRow.candidate_id == CandidateRow.id))
            .where(CandidateRow.job_id == job_id, VerdictRow.stage == stage)
            .order_by(CandidateRow.position)
        )
        with self._sessions.reading() as session:
            rows = session.execute(query).all()
            return tuple(Trial(candidate=_candidate(row), verdict=_VERDICT.validate_python(said.verdict)) for row, said in rows)


def _candidate(row: CandidateRow) -> Candidate:
    return Candidate(id=row.id, task=row.task_id, sha256=row.sha256, author=row.author, hypothesis=row.hypothesis, parent=row.parent)
