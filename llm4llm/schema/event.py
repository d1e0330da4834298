"""Progress of a job, for people who watch."""

from typing import Any, Literal

from llm4llm.schema.base import Frozen
from llm4llm.schema.job import StageName


class Event(Frozen):
    """One thing that happened; `facts` holds numbers for a live view."""

    job: str
    kind: Literal["stage_started", "stage_finished", "note", "trial", "decision"]
    stage: StageName | None = None
    text: str
    facts: dict[str, Any] = {}
