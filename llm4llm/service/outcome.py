"""What became of every hotspot: accepted, rejected or skipped, each with a reason, however far the job came."""

from typing import Literal, NamedTuple

from llm4llm.schema.acceptance import Acceptance
from llm4llm.schema.episode import Episode, Trial
from llm4llm.schema.job import Job, JobStatus
from llm4llm.schema.profile import Hotspot
from llm4llm.schema.reason import Reason
from llm4llm.schema.results import Results
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Passed

_UNTRIED = ("budget_spent", "cancelled")  # nothing is known against such a candidate


class Outcome(NamedTuple):
    status: Literal["accepted", "rejected", "skipped"]
    reason: Reason


def outcome(spot: Hotspot, job: Job, results: Results, tried: tuple[Trial, ...]) -> Outcome:
    """What became of a hotspot; `tried` are the job's stored trials, which may be ahead of its finished stages."""
    selection = results.task
    if selection is None:
        return Outcome("skipped", spot.refusal or _not_reached(job))
    if spot.id in selection.skipped:
        return Outcome("skipped", selection.skipped[spot.id])
    task = next((task for task in selection.tasks if task.hotspot == spot.id), None)
    if task is None:
        return Outcome("skipped", _not_reached(job))
    return _of_task(task, job, results, tuple(trial for trial in tried if trial.candidate.task == task.id))


def _of_task(task: Task, job: Job, results: Results, tried: tuple[Trial, ...]) -> Outcome:
    """The stage that the task came furthest in speaks for it."""
    found = _in_acceptance({trial.candidate.id for trial in tried}, results.acceptance)
    if found is not None:
        return found
    for trial in results.verdict.trials if results.verdict else ():
        if trial.candidate.task == task.id and not isinstance(trial.verdict, Passed):
            if trial.verdict.kind == "not_judged":
                return Outcome("skipped", Reason(code="not_judged", text=f"{trial.candidate.author} was {trial.verdict.reason}"))
            text = f"{trial.candidate.author} did not hold on inputs that it had not met before: {trial.verdict.reason}"
            return Outcome("rejected", Reason(code=f"verdict_{trial.verdict.kind}", text=text))
    for episode in results.episode.episodes if results.episode else ():
        if episode.task == task.id and episode.best is None:
            return _in_episode(episode)
    return Outcome("skipped", _not_reached(job))


def _in_acceptance(candidates: set[str], acceptance: Acceptance | None) -> Outcome | None:
    """None if nothing for this task came as far as the live model."""
    if acceptance is None:
        return None
    alone = [trial for trial in acceptance.trials if len(trial.patches) == 1 and trial.patches[0] in candidates]
    if any(patch.candidate in candidates for patch in acceptance.kept):
        own = [trial for trial in alone if trial.decision == "keep"]
        return Outcome("accepted", own[-1].reason if own else acceptance.reason)
    if not alone:
        return None
    # the last trial that names a patch alone says what became of it
    last = alone[-1].reason
    return Outcome("skipped" if last.code in _UNTRIED else "rejected", last)


def _in_episode(episode: Episode) -> Outcome:
    """Why none of the agent's candidates went further: the one that came closest speaks for all."""
    if not episode.trials:
        if episode.stop_reason == "budget_spent":
            text = "the budget was used up before a candidate was tried; give the job a larger --budget"
            return Outcome("skipped", Reason(code="budget_spent", text=text))
        return Outcome("skipped", Reason(code=episode.stop_reason, text="no candidate was tried"))
    passed = [trial for trial in episode.trials if isinstance(trial.verdict, Passed)]
    trial = passed[-1] if passed else episode.trials[-1]
    verdict = trial.verdict
    if isinstance(verdict, Passed):
        if verdict.speedup is None:
            text = f"{trial.candidate.author} is right, but its speed can't be measured on this machine"
            return Outcome("rejected", Reason(code="not_timed", text=text))
        return Outcome(
            "rejected", Reason(code="not_faster", text=f"{trial.candidate.author} is right but not faster ({verdict.speedup:.2f}x)")
        )
    text = f"{trial.candidate.author} was {verdict.outcome} ({verdict.kind}): {verdict.reason}"
    return Outcome("rejected", Reason(code=f"judge_{verdict.kind}", text=text))


def _not_reached(job: Job) -> Reason:
    if job.status is JobStatus.RUNNING:
        return Reason(code="running", text="the job still runs; nothing has been decided yet")
    if job.status is JobStatus.QUEUED:
        return Reason(code="interrupted", text=f"the job was interrupted before this was decided; continue with --resume {job.id}")
    if job.reason is not None:
        return Reason(code=job.reason.code, text=f"not tried, because the job ended before: {job.reason.text}")
    return Reason(code="not_reached", text="the job ended before this was tried")
