"""How far a job is, for people and programs that poll it."""

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

    id: str
    status: JobStatus
    stage: StageName | None
    progress: float  # 0 to 1
    best: Best
    spend: Spend
    eta_seconds: float | None  # at most this long until the end; None if nobody can say
    reason: Reason | None
    cancel_requested: bool
    script: str  # file name
    target: str
    agent: str
    objective: str
    created_at: str
    ended_at: str | None


class JobPage(Frozen):
    """Jobs, newest first; `next_cursor` continues the list and is None at its end."""

    jobs: tuple[JobView, ...]
    next_cursor: str | None = None
