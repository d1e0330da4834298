"""What the finished stages of a job gave."""

from llm4llm.schema.acceptance import Acceptance
from llm4llm.schema.base import Frozen
from llm4llm.schema.bundle import Bundle
from llm4llm.schema.capture import Capture
from llm4llm.schema.episode import Episodes, Trial
from llm4llm.schema.job import StageName
from llm4llm.schema.profile import ProfileReport
from llm4llm.schema.selection import Selection


class Verdicts(Frozen):
    """The best candidate of each task with the answer on inputs that it had not met before."""

    trials: tuple[Trial, ...]


class Packed(Frozen):
    """The archive of what was accepted; None if nothing was."""

    bundle: Bundle | None


class Results(Frozen):
    """One field per stage, named like it; None for a stage that has not finished."""

    capture: Capture | None = None
    profile: ProfileReport | None = None
    task: Selection | None = None
    episode: Episodes | None = None
    verdict: Verdicts | None = None
    acceptance: Acceptance | None = None
    bundle: Packed | None = None

    def has(self, stage: StageName) -> bool:
        return getattr(self, stage.value) is not None
