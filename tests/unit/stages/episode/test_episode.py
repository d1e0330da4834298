"""Which trial is the best, and when an episode stops."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm4llm.assets import Seed
from llm4llm.kit import FrozenClock, sha256_bytes
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Trial
from llm4llm.schema.job import Job
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Incorrect, Passed, Verdict
from llm4llm.stages.episode.run import Assignment, best, run
from llm4llm.stages.tools import Tools

JOB = cast(Job, SimpleNamespace(id="job_1"))


def passed(speedup: float | None, low: float | None) -> Verdict:
    ci95 = None if low is None else (low, low + 0.5)
    return Passed(reason="right", timing=None, speedup=speedup, ci95=ci95, proven_domain={}, config={})


def trial(name: str, verdict: Verdict) -> Trial:
    return Trial(candidate=Candidate(id=name, task="task_1", sha256="0" * 64, author="a", hypothesis=""), verdict=verdict)


def test_the_best_has_the_highest_low_end() -> None:
    trials = (
        trial("wrong", Incorrect(kind="shape", reason="no")),
        trial("wide", passed(3.0, 1.1)),
        trial("sure", passed(2.0, 1.8)),
        trial("untimed", passed(None, None)),
        trial("slower", passed(0.9, 0.8)),
    )
    found = best(trials)
    assert found is not None
    assert found.candidate.id == "sure"
    assert best((trials[0], trials[3], trials[4])) is None


@pytest.fixture
def task() -> Task:
    return Task(
        id="task_1", hotspot="h_1", module_class="m.Slow", module_path="slow", root="r0", phase="forward", share=0.5,
        family="f", calls=2, device="cpu", dtypes=("float32",), target="cpu",
    )  # fmt: skip


class Desk:
    """Tools with a judge that takes 10 s and passes everything."""

    def __init__(self, folder: Path, deadline: float) -> None:
        self.clock = FrozenClock()
        self.judged: list[str] = []
        self.stop = False
        self.stored: dict[str, Path] = {}
        self.folder = folder
        unused: Any = None
        self.tools = Tools(
            host=unused, judge=self.judge, confirm=unused, clock=self.clock, progress=lambda event: None, blobs=self,
            scratch=folder, deadline=deadline, cancelled=lambda: self.stop,
        )  # fmt: skip

    def judge(self, task: Task, candidate_file: Path, *, time_limit_s: float, held_out: bool = False) -> Verdict:
        self.clock.sleep(10)
        self.judged.append(candidate_file.read_text())
        return passed(2.0, 1.5)

    def put(self, content: bytes) -> str:
        sha256 = sha256_bytes(content)
        self.stored[sha256] = self.folder / sha256
        self.stored[sha256].write_bytes(content)
        return sha256

    def path(self, sha256: str) -> Path:
        return self.stored[sha256]

    def seeds(self, *names: str) -> tuple[Seed, ...]:
        found = []
        for name in names:
            file = self.folder / f"{name}.py"
            file.write_text(f'"""Why {name}."""\n')
            found.append(Seed(name, file))
        return tuple(found)


def test_each_new_trial_is_handed_over_at_once_and_old_ones_are_not_repeated(tmp_path: Path, task: Task) -> None:
    desk, kept = Desk(tmp_path, 1000), []
    first = run(JOB, Assignment(task, desk.seeds("a")), kept.append, desk.tools)
    both = run(JOB, Assignment(task, desk.seeds("a", "b"), finished=first.trials), kept.append, desk.tools)
    assert [found.candidate.author for found in kept] == ["seeds:a", "seeds:b"]
    assert len(desk.judged) == 2
    assert both.trials == tuple(kept)
    assert both.trials[0].candidate.hypothesis == "Why a."
    assert (both.stop_reason, both.best) == ("all_proposed", kept[0].candidate.id)
    assert first.seconds == 10


def test_it_stops_when_its_time_or_its_trials_are_spent_or_nobody_wants_it(tmp_path: Path, task: Task) -> None:
    desk = Desk(tmp_path, 25)
    spent = run(JOB, Assignment(task, desk.seeds("a", "b")), lambda trial: None, desk.tools)
    assert (len(spent.trials), spent.stop_reason) == (1, "budget_spent")
    desk = Desk(tmp_path, 1000)
    limited = run(JOB, Assignment(task, desk.seeds("a", "b"), max_trials=1), lambda trial: None, desk.tools)
    assert (len(limited.trials), limited.stop_reason) == (1, "trials_spent")
    desk.stop = True
    cancelled = run(JOB, Assignment(task, desk.seeds("a", "b")), lambda trial: None, desk.tools)
    assert (cancelled.trials, cancelled.best, cancelled.stop_reason) == ((), None, "cancelled")


def test_equal_content_for_the_same_task_is_the_same_candidate(tmp_path: Path, task: Task) -> None:
    desk = Desk(tmp_path, 1000)
    one = run(JOB, Assignment(task, desk.seeds("a")), lambda trial: None, desk.tools).trials[0].candidate
    again = run(JOB, Assignment(task, desk.seeds("a")), lambda trial: None, desk.tools).trials[0].candidate
    other = task.model_copy(update={"id": "task_2"})
    elsewhere = run(JOB, Assignment(other, desk.seeds("a")), lambda trial: None, desk.tools).trials[0].candidate
    assert one.id == again.id
    assert one.id != elsewhere.id
    assert one.sha256 == elsewhere.sha256


def test_a_file_that_nobody_can_read_is_left_to_the_judge(tmp_path: Path, task: Task) -> None:
    desk = Desk(tmp_path, 1000)
    (seed,) = desk.seeds("nested")
    seed.path.write_text("x = a" + ".b" * 100_000)
    found = run(JOB, Assignment(task, (seed,)), lambda trial: None, desk.tools)
    assert [trial.candidate.hypothesis for trial in found.trials] == [""]
