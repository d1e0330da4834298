"""The best candidate of each task once more, in a fresh process and on inputs that no earlier verdict of the job used."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Trial
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, StageName
from llm4llm.schema.results import Verdicts
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Failed, Verdict
from llm4llm.stages.promise import STEP, promise, within_reach
from llm4llm.stages.tools import Tools

FAIR_VERDICT_S = 60.0  # granted to each finalist that is begun, even when its stage is late
NOT_JUDGED = "not_judged"


class Finalist(NamedTuple):
    """A task with the candidate that its episode named as the best and its speedup there; the verdict, if an earlier run came to one."""

    task: Task
    candidate: Candidate
    speedup: float | None = None
    finished: Verdict | None = None

    @property
    def promise(self) -> float:
        return promise(self.task.share, self.speedup)


def run(job: Job, finalists: Sequence[Finalist], keep: Callable[[Trial], None], tools: Tools) -> Verdicts:
    """A verdict for every finalist, the most promising first; `keep` gets each new one before the next begins.

    The time of the stages after this one is theirs: once it would be touched, the rest go without, but for the first.
    """
    trials: list[Trial] = []
    longest = 0.0
    ranked = sorted(finalists, key=lambda finalist: -finalist.promise)
    for position, finalist in enumerate(ranked):
        started = tools.clock.monotonic()
        verdict = finalist.finished
        if verdict is None:
            refusal = _not_worth(finalist, tools, longest if position else 0.0)
            verdict = refusal or _judged(finalist, tools, len(ranked) - position)
            longest = longest if refusal else max(longest, tools.clock.monotonic() - started)
        trial = Trial(candidate=finalist.candidate, verdict=verdict)
        if finalist.finished is None:
            keep(trial)
        text = f"{finalist.candidate.author} on new inputs: {trial.verdict.outcome}, {trial.verdict.reason}"
        facts = {"candidate": finalist.candidate.id, "outcome": trial.verdict.outcome}
        tools.progress(Event(job=job.id, kind="note", stage=StageName.VERDICT, text=text, facts=facts))
        trials.append(trial)
    return Verdicts(trials=tuple(trials))


def _not_worth(finalist: Finalist, tools: Tools, needed_s: float) -> Failed | None:
    """Why a finalist is not judged; None if it is. `needed_s`: what the dearest judgement so far took."""
    if tools.cancelled():
        return Failed(kind=NOT_JUDGED, reason="not judged on new inputs, because the job was cancelled")
    if not within_reach(finalist.task.share, finalist.speedup):
        text = f"{finalist.speedup:.2f}x for {finalist.task.share:.1%} of the workload is less than the {STEP} that a patch must add"
        return Failed(kind=NOT_JUDGED, reason=f"not judged on new inputs, because {text}")
    if tools.seconds_left() < needed_s:
        text = "more promising candidates took the time for it; give the job a larger --budget"
        return Failed(kind=NOT_JUDGED, reason=f"not judged on new inputs, because {text}")
    return None


def _judged(finalist: Finalist, tools: Tools, still_to_come: int) -> Verdict:
    seconds = max(FAIR_VERDICT_S, tools.seconds_left() / still_to_come)
    file = tools.candidate_file(finalist.candidate.sha256)
    return tools.judge(finalist.task, file, time_limit_s=seconds, held_out=True)
