"""Progress of a job, for people who watch."""

from typing import Literal

from llm4llm.schema.base import Facts, Frozen, Name, Sentence
from llm4llm.schema.job import StageName


class Event(Frozen):
    """One thing that happened; `facts` holds numbers for a live view."""

    job: Name
    kind: Literal["stage_started", "stage_finished", "note", "trial", "decision", "output"]
    stage: StageName | None = None
    text: Sentence
    facts: Facts = {}
