"""One attempt at a stage of a job."""

from typing import Any, Literal

from llm4llm.schema.base import Frozen
from llm4llm.schema.job import StageName
from llm4llm.schema.reason import Reason


class StageRun(Frozen):
    """What an attempt gave; only a `finished` one has a result."""

    job: str
    stage: StageName
    attempt: int  # from 1
    status: Literal["running", "finished", "failed"]
    result: dict[str, Any] | None = None
    reason: Reason | None = None  # why it failed
    seconds: float | None = None  # None while it runs, and for ever if its process was killed
    started_at: str
    ended_at: str | None = None
