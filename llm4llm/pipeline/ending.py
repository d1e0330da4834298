"""When a job is over, told from its stored results alone: asked before every stage, and the same answer after a crash."""

from typing import NamedTuple

from llm4llm.schema.job import Job, JobStatus
from llm4llm.schema.reason import Reason
from llm4llm.schema.results import Results
from llm4llm.schema.verdict import Passed
from llm4llm.stages.capture.ending import ending as ending_of_script


class Ending(NamedTuple):
    """The state in which a job ends, and why."""

    status: JobStatus
    reason: Reason


def ending(job: Job, results: Results) -> Ending | None:
    """None while there is a stage left that could change something."""
    after_script = _after_script(results)
    if after_script is not None:
        return after_script
    stop = job.request.stop_after
    if stop is not None and results.has(stop):
        return _good("stopped_as_asked", f"ended after its {stop.value} stage, as asked")
    return _nothing_to_do(results) or _after_acceptance(results)


def _after_script(results: Results) -> Ending | None:
    """A script that failed ends its job, but what ran before is profiled first."""
    if results.capture is None:
        return None
    found = ending_of_script(results.capture)
    if found is None:
        return None
    profiled = results.profile is not None or not results.capture.drivers
    return Ending(JobStatus(found.status), found.reason) if profiled else None


def _nothing_to_do(results: Results) -> Ending | None:
    if results.profile is not None and not results.profile.hotspots:
        refusals = [driver.refusal for driver in results.capture.drivers if driver.refusal] if results.capture else []
        if refusals:
            return _good(refusals[0].code, f"nothing to optimise: {refusals[0].text}")
        return _good("no_hotspot", "nothing to optimise: no call into a model could be repeated")
    if results.task is not None and not results.task.tasks:
        return _good("nothing_to_try", f"nothing to try: no hotspot is worth an attempt{_largest(results)}")
    if results.episode is not None and not any(episode.best for episode in results.episode.episodes):
        if any(episode.stop_reason == "budget_spent" for episode in results.episode.episodes):
            return _good("budget_spent", "the budget was used up before a faster candidate was found; give the job a larger --budget")
        return _good("nothing_accepted", "nothing accepted: no candidate was both right and faster than the module that it replaces")
    finals = [trial.verdict for trial in results.verdict.trials] if results.verdict else []
    if finals and not any(isinstance(verdict, Passed) for verdict in finals):
        return _good("nothing_accepted", "nothing accepted: the best candidates did not hold on inputs that they had not met before")
    return None


def _largest(results: Results) -> str:
    """What is said about the hotspot that holds most time of its own."""
    spots = results.profile.hotspots if results.profile else ()
    largest = max(spots, key=lambda spot: spot.self_share, default=None)
    reason = results.task.skipped.get(largest.id) if results.task and largest else None
    return f"; the largest: {reason.text}" if reason else ""


def _after_acceptance(results: Results) -> Ending | None:
    if results.acceptance is None:
        return None
    if results.acceptance.decision == "nothing_accepted":
        return Ending(JobStatus.SUCCEEDED, results.acceptance.reason.model_copy(update={"code": "nothing_accepted"}))
    if results.bundle is None:
        return None
    return Ending(JobStatus.SUCCEEDED, results.acceptance.reason.model_copy(update={"code": "accepted"}))


def _good(code: str, text: str) -> Ending:
    return Ending(JobStatus.SUCCEEDED, Reason(code=code, text=text))
