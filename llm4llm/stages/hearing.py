"""What the live host says while it works, as events of the job. A script shares the host's process: it may say anything, at any length."""

from collections.abc import Callable
from typing import Any

from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, StageName
from llm4llm.stages.tools import Progress

MOST_EVENTS = 1_000  # of one request; an honest script has a few, one for each new kind of call
MOST_CHARACTERS = 1 << 20
_MOST_TEXT = 2_000
MORE = "more events were not kept"

Heard = tuple[str, dict[str, Any]]  # a text for people, and facts


class Hearer:
    """Makes an event of each of them, and none any more once there were too many; the work itself goes on."""

    def __init__(self, job: Job, stage: StageName, progress: Progress, read: Callable[[dict[str, Any]], Heard]) -> None:
        self._job, self._stage, self._progress, self._read = job, stage, progress, read
        self._events, self._characters = MOST_EVENTS, MOST_CHARACTERS

    def __call__(self, said: dict[str, Any]) -> None:
        if self._events <= 0:
            return
        text, facts = self._read(said)
        text = text[:_MOST_TEXT]
        self._events -= 1
        self._characters -= len(text) + sum(len(str(part)) for part in facts.values())
        if self._events == 0 or self._characters < 0:
            self._events, text, facts = 0, MORE, {}
        self._progress(Event(job=self._job.id, kind="note", stage=self._stage, text=text, facts=facts))


def words(said: object, *names: str) -> dict[str, str]:
    """The named parts of something that was said, as short texts; those that are missing are left out."""
    if not isinstance(said, dict):
        return {}
    return {name: str(said[name])[:_MOST_TEXT] for name in names if isinstance(said.get(name), str | int | float)}
