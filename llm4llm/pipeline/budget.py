"""How a job's seconds are split between its stages."""

from collections.abc import Iterable

from llm4llm.schema.job import Budget, StageName
from llm4llm.schema.run import StageRun

# Share of the whole budget after which a stage has to have ended. What a stage leaves over goes to the next one; nothing before acceptance
# may touch the last third: a candidate that can't be tried in the model is worth nothing.
ENDS_BY: dict[StageName, float] = {
    StageName.CAPTURE: 0.30,
    StageName.PROFILE: 0.40,
    StageName.TASK: 0.45,
    StageName.EPISODE: 0.60,
    StageName.VERDICT: 0.68,
    StageName.ACCEPTANCE: 1.0,
    StageName.BUNDLE: 1.0,
}
PACKING_S = 60.0  # always granted: what was accepted is never lost for want of time


def spent_s(runs: Iterable[StageRun]) -> float:
    """Seconds that finished stages took. An interrupted attempt counts for nothing: a continued job decides like one that ran through."""
    return sum(run.seconds or 0.0 for run in runs if run.status == "finished")


def seconds_for(stage: StageName, budget: Budget, spent: float) -> float:
    """What a stage that begins now may take; never negative."""
    if stage is StageName.BUNDLE:
        return PACKING_S
    return max(0.0, ENDS_BY[stage] * budget.seconds - spent)
