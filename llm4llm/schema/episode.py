"""What an agent tried on a task."""

from llm4llm.schema.base import Frozen
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.verdict import Verdict


class Trial(Frozen):
    """A candidate and the judge's answer."""

    candidate: Candidate
    verdict: Verdict


class Episode(Frozen):
    """Trials of one fresh-context attempt and why it stopped."""

    task: str
    agent: str
    trials: tuple[Trial, ...]
    best: str | None  # candidate id
    stop_reason: str
    seconds: float


class Episodes(Frozen):
    """What the agent tried on every task of a job, in the order of the tasks."""

    episodes: tuple[Episode, ...]
