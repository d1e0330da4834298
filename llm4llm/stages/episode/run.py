"""One attempt of the agent at a task: candidates are proposed, the judge answers, the best one is named."""

from collections.abc import Callable
from dataclasses import dataclass

from llm4llm.assets import Seed
from llm4llm.kit import SourceRefused, read_source, sha256_bytes
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Episode, Trial
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, StageName
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Passed, Verdict
from llm4llm.stages.tools import Tools

AGENT = "seeds"
MAX_TRIAL_S = 300.0
FAIR_TRIAL_S = 75.0  # three times what a judgement usually takes: most of it is starting processes, whatever the module
MIN_TRIAL_S = 20.0  # below it, a judgement would be cut off rather than answered


@dataclass(frozen=True)
class Assignment:
    """A task, the files to propose for it, and the trials that an earlier run of this stage has finished."""

    task: Task
    seeds: tuple[Seed, ...]
    finished: tuple[Trial, ...] = ()
    max_trials: int = 8


def run(job: Job, assignment: Assignment, keep: Callable[[Trial], None], tools: Tools) -> Episode:
    """Every trial in the order of proposal; `keep` gets each new one before the next begins, so that none is lost or repeated."""
    started = tools.clock.monotonic()
    finished = {trial.candidate.id: trial for trial in assignment.finished}
    trials: list[Trial] = []
    stop = "all_proposed"
    for position, seed in enumerate(assignment.seeds):
        if len(trials) >= assignment.max_trials:
            stop = "trials_spent"
            break
        candidate = _candidate(assignment.task, seed, tools)
        trial = finished.get(candidate.id)
        if trial is None:
            left = len(assignment.seeds) - position
            seconds = min(MAX_TRIAL_S, tools.seconds_left(), max(FAIR_TRIAL_S, tools.seconds_left() / left))
            if tools.cancelled() or seconds < MIN_TRIAL_S:
                stop = "cancelled" if tools.cancelled() else "budget_spent"
                break
            verdict = tools.judge(assignment.task, tools.candidate_file(candidate.sha256), time_limit_s=seconds)
            trial = Trial(candidate=candidate, verdict=verdict)
            keep(trial)
        trials.append(trial)
        _tell(job, assignment.task, trials, tools)
    winner = best(tuple(trials))
    return Episode(
        task=assignment.task.id,
        agent=AGENT,
        trials=tuple(trials),
        best=winner.candidate.id if winner else None,
        stop_reason=stop,
        seconds=tools.clock.monotonic() - started,
    )


def best(trials: tuple[Trial, ...]) -> Trial | None:
    """The passed trial with the highest low end of its speedup's interval, among those that are faster at all."""
    faster = [trial for trial in trials if low_end(trial.verdict) is not None and _speedup(trial.verdict) > 1.0]
    # ties go to the one proposed first
    return max(faster, key=lambda trial: low_end(trial.verdict) or 0.0, default=None)


def low_end(verdict: Verdict) -> float | None:
    """Low end of the speedup's 95 % interval; None for what did not pass or could not be timed."""
    return verdict.ci95[0] if isinstance(verdict, Passed) and verdict.ci95 is not None else None


def _speedup(verdict: Verdict) -> float:
    return verdict.speedup if isinstance(verdict, Passed) and verdict.speedup is not None else 0.0


def _candidate(task: Task, seed: Seed, tools: Tools) -> Candidate:
    content = seed.path.read_bytes()
    identity = sha256_bytes(task.id.encode() + b"\n" + content)[:12]
    return Candidate(
        id=f"cand_{identity}",
        task=task.id,
        sha256=tools.blobs.put(content),
        author=f"{AGENT}:{seed.name}",
        hypothesis=_docstring(content),
    )


def _docstring(content: bytes) -> str:
    try:
        return read_source(content).docstring
    except SourceRefused:
        return ""  # the judge's verdict says what is wrong with it


def _tell(job: Job, task: Task, trials: list[Trial], tools: Tools) -> None:
    trial, leader = trials[-1], best(tuple(trials))
    verdict = trial.verdict
    speedup = _speedup(leader.verdict) if leader else None
    facts = {"task": task.id, "candidate": trial.candidate.id, "outcome": verdict.outcome, "kind": verdict.kind, "best": speedup}
    text = f"{trial.candidate.author} on {task.module_class} ({task.phase}): {verdict.outcome}, {verdict.reason}"
    tools.progress(Event(job=job.id, kind="trial", stage=StageName.EPISODE, text=text, facts=facts))
