"""Which hotspots are worth an attempt."""

from llm4llm.schema.base import Frozen
from llm4llm.schema.reason import Reason
from llm4llm.schema.task import Task


class Selection(Frozen):
    """A task or a reason for every hotspot of a profile."""

    tasks: tuple[Task, ...]  # the most promising first
    seeds: dict[str, tuple[str, ...]]  # task id → names of the seeds that say they match its module
    skipped: dict[str, Reason]  # hotspot id → why there is no task for it
