"""How far a job is, for people and programs that poll it."""

from pydantic import Field

from llm4llm.schema.base import Frozen
from llm4llm.schema.job import JobStatus, StageName
from llm4llm.schema.reason import Reason


class Best(Frozen):
    """The largest speedup seen so far."""

    module_speedup: float | None = None  # of a module alone, as the judge measured it
    end_to_end_speedup: float | None = None  # of the whole workload on the live model


class Spend(Frozen):
    """What the job has used up."""

    seconds: float
    budget_seconds: float


class JobView(Frozen):
    """One job as it is now."""

    id: str = Field(examples=["job_1m8qy2zkv66zqdhgf"])
    status: JobStatus
    stage: StageName | None = Field(description="The stage that runs now, or the last one that ran.")
    progress: float = Field(ge=0, le=1, examples=[0.35])
    best: Best
    spend: Spend
    eta_seconds: float | None = Field(description="At most this long until the end; null if nobody can say.", examples=[120.5])
    reason: Reason | None = Field(description="Why the job ended as it did; null before its end.")
    cancel_requested: bool
    script: str = Field(description="File name.", examples=["infer.py"])
    target: str = Field(examples=["auto"])
    agent: str = Field(examples=["seeds"])
    objective: str = Field(examples=["latency"])
    created_at: str = Field(description="ISO 8601, UTC.", examples=["2025-01-01T00:00:00.000000+00:00"])
    ended_at: str | None


class JobPage(Frozen):
    """Jobs, newest first; `next_cursor` continues the list and is None at its end."""

    jobs: tuple[JobView, ...]
    next_cursor: str | None = None
