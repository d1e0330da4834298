"""The ordered table of stages, and what each one starts from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from llm4llm.assets import Seed
from llm4llm.kit import iso
from llm4llm.schema.acceptance import Acceptance, Patch
from llm4llm.schema.base import Frozen
from llm4llm.schema.capture import Capture
from llm4llm.schema.episode import Episode, Episodes, Trial
from llm4llm.schema.job import Job, StageName
from llm4llm.schema.profile import ProfileReport
from llm4llm.schema.results import Packed, Results, Verdicts
from llm4llm.schema.selection import Selection
from llm4llm.schema.verdict import Passed
from llm4llm.stages.acceptance.run import Proposal
from llm4llm.stages.acceptance.run import run as accept
from llm4llm.stages.bundle.run import run as pack
from llm4llm.stages.capture.run import ResolveTarget
from llm4llm.stages.capture.run import run as capture
from llm4llm.stages.episode.run import Assignment
from llm4llm.stages.episode.run import run as attempt
from llm4llm.stages.profile.run import run as profile
from llm4llm.stages.task.run import MIN_SHARE, Wanted
from llm4llm.stages.task.run import run as choose
from llm4llm.stages.tools import Tools
from llm4llm.stages.verdict.run import Finalist
from llm4llm.stages.verdict.run import run as judge_again
from llm4llm.store import Store
from llm4llm.store.candidates import JudgedIn

_T = TypeVar("_T")


@dataclass(frozen=True)
class Plan:
    """What an installation brings to every job."""

    seeds: tuple[Seed, ...]
    resolve_target: ResolveTarget
    min_share: float = MIN_SHARE
    trials_per_task: int = 8


@dataclass(frozen=True)
class Bench:
    """What one stage has in front of it: stored results and its tools."""

    job: Job
    results: Results
    store: Store
    tools: Tools
    plan: Plan

    @property
    def captured(self) -> Capture:
        return _there(self.results.capture)

    @property
    def profiled(self) -> ProfileReport:
        return _there(self.results.profile)

    @property
    def selected(self) -> Selection:
        return _there(self.results.task)


def _nothing_more(_bench: Bench, _result: Any) -> None:
    pass


@dataclass(frozen=True)
class Step:
    """A stage: what it does, and what else is stored in the transaction that stores its result."""

    stage: StageName
    run: Callable[[Bench], Frozen]
    also: Callable[[Bench, Any], None] = _nothing_more
    times: bool = False  # it measures: nothing else may be measured on the same device meanwhile


def _there(result: _T | None) -> _T:
    if result is None:
        raise AssertionError("a stage was run before the one that it starts from")
    return result


def _capture(bench: Bench) -> Capture:
    return capture(bench.job, bench.plan.resolve_target, bench.tools)


def _profile(bench: Bench) -> ProfileReport:
    return profile(bench.job, bench.tools)


def _task(bench: Bench) -> Selection:
    every = bench.job.request.stop_after is StageName.TASK
    wanted = Wanted(bench.captured, bench.profiled, bench.plan.seeds, every, bench.plan.min_share)
    return choose(bench.job, wanted, bench.tools)


def _store_tasks(bench: Bench, selection: Selection) -> None:
    bench.store.candidates.add_tasks(bench.job.id, selection.tasks)


def _episode(bench: Bench) -> Episodes:
    """One episode per task, the most promising task first. A late task may go without: half a judgement of each would help nobody."""
    seeds = {seed.name: seed for seed in bench.plan.seeds}
    finished = bench.store.candidates.trials(bench.job.id, "episode")
    episodes: list[Episode] = []
    for task in bench.selected.tasks:
        own = tuple(trial for trial in finished if trial.candidate.task == task.id)
        proposed = tuple(seeds[name] for name in bench.selected.seeds.get(task.id, ()) if name in seeds)
        assignment = Assignment(task, proposed, own, bench.plan.trials_per_task)
        episodes.append(attempt(bench.job, assignment, _keeper(bench, "episode"), bench.tools))
    return Episodes(episodes=tuple(episodes))


def _keeper(bench: Bench, stage: JudgedIn) -> Callable[[Trial], None]:
    def keep(trial: Trial) -> None:
        bench.store.candidates.record(bench.job.id, trial, stage, iso(bench.tools.clock.now()))

    return keep


def _verdict(bench: Bench) -> Verdicts:
    finished = {trial.candidate.id: trial.verdict for trial in bench.store.candidates.trials(bench.job.id, "verdict")}
    tasks = {task.id: task for task in bench.selected.tasks}
    finalists = [
        Finalist(tasks[episode.task], trial.candidate, _speedup(trial), finished.get(trial.candidate.id))
        for episode in _there(bench.results.episode).episodes
        for trial in episode.trials
        if trial.candidate.id == episode.best
    ]
    return judge_again(bench.job, finalists, _keeper(bench, "verdict"), bench.tools)


def _speedup(trial: Trial) -> float | None:
    return trial.verdict.speedup if isinstance(trial.verdict, Passed) else None


def _acceptance(bench: Bench) -> Acceptance:
    tasks = {task.id: task for task in bench.selected.tasks}
    paths = {spot.id: spot.paths for spot in bench.profiled.hotspots}
    proposals = []
    for candidate, verdict in ((trial.candidate, trial.verdict) for trial in _there(bench.results.verdict).trials):
        if not isinstance(verdict, Passed):
            continue
        task = tasks[candidate.task]
        patch = Patch(
            candidate=candidate.id,
            candidate_sha256=candidate.sha256,
            task=task.id,
            root=task.root,
            module_class=task.module_class,
            phase=task.phase,
            family=task.family,
            paths=paths[task.hotspot],
            config=verdict.config,
            proven_domain=verdict.proven_domain,
        )
        proposals.append(Proposal(patch, task.share, verdict.speedup))
    return accept(bench.job, proposals, bench.tools)


def _bundle(bench: Bench) -> Packed:
    return Packed(bundle=pack(bench.job, bench.results, bench.tools))


STEPS: tuple[Step, ...] = (
    Step(StageName.CAPTURE, _capture),
    Step(StageName.PROFILE, _profile, times=True),
    Step(StageName.TASK, _task, _store_tasks),
    Step(StageName.EPISODE, _episode, times=True),
    Step(StageName.VERDICT, _verdict, times=True),
    Step(StageName.ACCEPTANCE, _acceptance, times=True),
    Step(StageName.BUNDLE, _bundle),
)
