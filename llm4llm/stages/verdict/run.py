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
from llm4llm.stages.tools import Tools

FAIR_VERDICT_S = 60.0  # granted to each finalist even when its stage is late: what was found is worth a fair hearing
NOT_JUDGED = "not_judged"


class Finalist(NamedTuple):
    """A task with the candidate that its episode named as the best; the verdict, if an earlier run of this stage came to one."""

    task: Task
    candidate: Candidate
    finished: Verdict | None = None


def run(job: Job, finalists: Sequence[Finalist], keep: Callable[[Trial], None], tools: Tools) -> Verdicts:
    """A verdict for every finalist; `keep` gets each new one before the next begins, so that none is lost or repeated."""
    trials = []
    for position, finalist in enumerate(finalists):
        verdict = finalist.finished
        trial = Trial(candidate=finalist.candidate, verdict=verdict or _judged(finalist, tools, len(finalists) - position))
        if verdict is None:
            keep(trial)
        text = f"{finalist.candidate.author} on new inputs: {trial.verdict.outcome}, {trial.verdict.reason}"
        facts = {"candidate": finalist.candidate.id, "outcome": trial.verdict.outcome}
        tools.progress(Event(job=job.id, kind="note", stage=StageName.VERDICT, text=text, facts=facts))
        trials.append(trial)
    return Verdicts(trials=tuple(trials))


def _judged(finalist: Finalist, tools: Tools, still_to_come: int) -> Verdict:
    if tools.cancelled():
        return Failed(kind=NOT_JUDGED, reason="not judged on new inputs, because the job was cancelled")
    seconds = max(FAIR_VERDICT_S, tools.seconds_left() / still_to_come)
    file = tools.candidate_file(finalist.candidate.sha256)
    return tools.judge(finalist.task, file, time_limit_s=seconds, held_out=True)
