"""How seconds are split, and what a continued job has left."""

from llm4llm.pipeline.budget import ENDS_BY, PACKING_S, seconds_for, spent_s
from llm4llm.schema.job import Budget, StageName
from llm4llm.schema.run import StageRun


def run(status: str, seconds: float | None) -> StageRun:
    return StageRun.model_validate(
        {"job": "j", "stage": "profile", "attempt": 1, "status": status, "seconds": seconds, "started_at": "2025-01-01"}
    )


def test_later_stages_never_end_earlier() -> None:
    shares = [ENDS_BY[stage] for stage in StageName]
    assert shares == sorted(shares)
    assert ENDS_BY[StageName.CAPTURE] <= 0.3
    assert 1.0 - ENDS_BY[StageName.VERDICT] >= 0.25


def test_what_a_stage_leaves_over_goes_to_the_next() -> None:
    budget = Budget(seconds=100)
    assert seconds_for(StageName.CAPTURE, budget, 0) == 30
    assert seconds_for(StageName.PROFILE, budget, 2) == 38
    assert seconds_for(StageName.EPISODE, budget, 99) == 0
    assert seconds_for(StageName.BUNDLE, budget, 200) == PACKING_S


def test_only_finished_attempts_count() -> None:
    assert spent_s([run("finished", 5.0), run("failed", 50.0), run("running", None)]) == 5.0
