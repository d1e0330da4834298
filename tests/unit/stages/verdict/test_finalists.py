"""Which finalists are judged on new inputs, in which order, and which go without."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm4llm.kit import FrozenClock
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Trial
from llm4llm.schema.job import Job
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Incorrect, Passed, Verdict
from llm4llm.stages.tools import Tools
from llm4llm.stages.verdict.run import NOT_JUDGED, Finalist, run

JOB = cast(Job, SimpleNamespace(id="job_1"))
JUDGEMENT_S = 30.0
PASSED = Passed(reason="right", timing=None, speedup=2.0, ci95=(1.9, 2.1), proven_domain={}, config={})


def finalist(name: str, share: float, speedup: float | None = 2.0, finished: Verdict | None = None) -> Finalist:
    task = Task(
        id=f"t_{name}", hotspot="h", module_class="m.Slow", module_path="slow", root="r0", phase="forward", share=share,
        family="f", calls=2, device="cpu", dtypes=("float32",), target="cpu",
    )  # fmt: skip
    return Finalist(task, Candidate(id=name, task=task.id, sha256="0" * 64, author="seeds:a", hypothesis=""), speedup, finished)


class Desk:
    """Tools with a judge that takes its time and passes everything."""

    def __init__(self, deadline: float) -> None:
        self.clock = FrozenClock()
        self.judged: list[str] = []
        self.kept: list[Trial] = []
        tools = SimpleNamespace(
            clock=self.clock,
            cancelled=lambda: False,
            progress=lambda event: None,
            candidate_file=lambda sha256: Path("candidate.py"),
            judge=self._judge,
            seconds_left=lambda: max(0.0, deadline - self.clock.monotonic()),
        )
        self.tools = cast(Tools, tools)

    def _judge(self, task: Task, file: Path, **_: Any) -> Verdict:
        self.judged.append(task.id.removeprefix("t_"))
        self.clock.sleep(JUDGEMENT_S)
        return PASSED

    def run(self, *finalists: Finalist) -> dict[str, Verdict]:
        found = run(JOB, finalists, self.kept.append, self.tools)
        return {trial.candidate.id: trial.verdict for trial in found.trials}


def test_the_most_promising_are_judged_first_and_the_next_stage_keeps_its_time() -> None:
    desk = Desk(deadline=2.5 * JUDGEMENT_S)
    verdicts = desk.run(finalist("wide", 0.9, 1.05), finalist("deep", 0.5, 1.7), finalist("third", 0.04), finalist("middle", 0.2))
    assert desk.judged == ["deep", "middle"]
    assert desk.clock.monotonic() <= 2.5 * JUDGEMENT_S
    for name in ("wide", "third"):
        assert verdicts[name].kind == NOT_JUDGED
        assert "larger --budget" in verdicts[name].reason
    assert {trial.candidate.id for trial in desk.kept} == set(verdicts)


def test_the_first_is_judged_however_late_it_is() -> None:
    desk = Desk(deadline=0.0)
    verdicts = desk.run(finalist("a", 0.2), finalist("b", 0.5))
    assert desk.judged == ["b"]
    assert verdicts["a"].kind == NOT_JUDGED


@pytest.mark.parametrize(("share", "speedup", "judged"), [(0.02, 1.07, False), (0.02, 3.0, True), (0.5, 1.004, False), (0.5, None, True)])
def test_what_can_not_move_the_workload_is_not_judged_again(share: float, speedup: float | None, judged: bool) -> None:
    desk = Desk(deadline=1000.0)
    verdict = desk.run(finalist("a", share, speedup))["a"]
    assert (desk.judged == ["a"]) == judged
    assert judged or "of the workload is less than the 1.003" in verdict.reason


def test_finished_verdicts_are_not_repeated_and_cost_nothing() -> None:
    wrong = Incorrect(kind="values", reason="wrong on new inputs")
    desk = Desk(deadline=JUDGEMENT_S)
    verdicts = desk.run(finalist("a", 0.9, finished=wrong), finalist("b", 0.5), finalist("c", 0.4))
    assert verdicts["a"] == wrong
    assert desk.judged == ["b"]
    assert [trial.candidate.id for trial in desk.kept] == ["b", "c"]
