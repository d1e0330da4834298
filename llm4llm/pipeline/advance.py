"""Take a job from wherever it stands to its end, one stored stage at a time."""

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace

from llm4llm.errors import InfraError, Llm4llmError, NoLongerOurs
from llm4llm.kit import Clock, iso, span
from llm4llm.pipeline.budget import seconds_for, spent_s
from llm4llm.pipeline.ending import Ending, ending
from llm4llm.pipeline.steps import STEPS, Bench, Plan, Step
from llm4llm.pipeline.transitions import ENDED, move, put_back
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, StageName
from llm4llm.schema.reason import Reason
from llm4llm.schema.run import StageRun
from llm4llm.stages.hearing import MORE
from llm4llm.stages.tools import Progress, Tools
from llm4llm.store import Store

_INTERRUPTED = Reason(code="interrupted", text="interrupted before its end; continue with --resume")
_CANCELLED = Ending(JobStatus.CANCELLED, Reason(code="cancelled", text="cancelled as asked; finished stages are kept"))


MOST_EVENTS = 5_000  # of one job, all its attempts together; notes beyond them are not kept


@dataclass
class _Recorder:
    """Stores every event, with what is left of the budget, before anybody else hears of it."""

    job: Job
    store: Store
    clock: Clock
    outer: Progress
    spent: float  # by the stages before
    since: float  # monotonic seconds at which the running stage began
    room: int  # for so many notes

    def __call__(self, event: Event) -> None:
        if event.kind == "note":
            self.room -= 1
            if self.room < 0:
                return
            if self.room == 0:
                event = event.model_copy(update={"text": MORE, "facts": {}})
        left = self.job.request.budget.seconds - self.spent - (self.clock.monotonic() - self.since)
        event = event.model_copy(update={"facts": {**event.facts, "budget_left_s": round(max(0.0, left), 3)}})
        self.store.events.add(event, iso(self.clock.now()))
        self.outer(event)


def advance(job_id: str, store: Store, tools: Tools, plan: Plan, steps: tuple[Step, ...] = STEPS) -> Job:
    """The job at its end. Finished stages never run again, so calling this after any crash goes on where it was.

    The caller makes sure that nobody else advances the same job, best with a fenced store: then a caller that is no longer the right one
    gets NoLongerOurs, and nothing is stored. Any other InfraError, a signal's exception or a fault of ours passes on after the attempt was
    closed; the first two leave the job queued, to be continued.
    """
    job = store.jobs.get(job_id)
    if job.status in ENDED:
        return job
    job = move(store, job_id, JobStatus.RUNNING, None, iso(tools.clock.now()))
    if job.status is not JobStatus.RUNNING:
        return job
    if tools.request is not None:
        job = job.model_copy(update={"request": tools.request})
    try:
        with span("job", job=job.id):
            reached = _walk(job, store, tools, plan, steps)
        return end(job, reached, store, tools.clock, tools.progress)
    except NoLongerOurs:
        raise
    except InfraError:
        if tools.cancelled():
            return end(job, _CANCELLED, store, tools.clock, tools.progress)
        put_back(store, job_id, tools.clock)
        raise
    except Exception as error:
        reason = Reason(code="internal_error", text=f"a fault of llm4llm: {type(error).__name__}: {error}")
        end(job, Ending(JobStatus.FAILED, reason), store, tools.clock, tools.progress)
        raise
    except BaseException:
        move(store, job_id, JobStatus.QUEUED, None, iso(tools.clock.now()))
        raise


def _walk(job: Job, store: Store, tools: Tools, plan: Plan, steps: tuple[Step, ...]) -> Ending:
    """Run the stages that have not finished, until the job is over."""
    for step in steps:
        results = store.stages.results(job.id)
        reached = ending(job, results)
        if reached is not None:
            return reached
        if tools.cancelled():
            return _CANCELLED
        if results.has(step.stage):
            continue
        # before the stage's time begins: waiting for others is nothing that the job's budget pays for
        with tools.device() if step.times else nullcontext(), span(f"stage {step.stage.value}", job=job.id, stage=step.stage.value):
            failure = _CANCELLED if tools.cancelled() else _run(step, job, store, tools, plan)
        if failure is not None:
            return _CANCELLED if tools.cancelled() else failure  # its children were ended because of that
    reached = ending(job, store.stages.results(job.id))
    if reached is None:
        raise AssertionError(f"every stage of {job.id} has finished, and yet it has no end")
    return reached


def _run(step: Step, job: Job, store: Store, tools: Tools, plan: Plan) -> Ending | None:
    """Run one stage and store its result; an ending if it could not reach one."""
    clock = tools.clock
    spent = spent_s(store.stages.runs(job.id))
    since = clock.monotonic()
    recorder = _Recorder(job, store, clock, tools.progress, spent, since, MOST_EVENTS - store.events.count(job.id))
    tools = replace(tools, progress=recorder, deadline=since + seconds_for(step.stage, job.request.budget, spent))
    started_at = iso(clock.now())
    with store.transaction():
        store.jobs.enter(job.id, step.stage)
        attempt = store.stages.start(job.id, step.stage, started_at)

    def closed(status: str, result: object = None, reason: Reason | None = None) -> StageRun:
        facts = {"job": job.id, "stage": step.stage, "attempt": attempt, "status": status, "result": result, "reason": reason}
        ended = {"seconds": clock.monotonic() - since, "started_at": started_at, "ended_at": iso(clock.now())}
        return StageRun.model_validate({**facts, **ended})

    try:
        recorder(_event(job, "stage_started", step.stage, f"{step.stage.value} started"))
        bench = Bench(job, store.stages.results(job.id), store, tools, plan)
        result = step.run(bench)
        with store.transaction():
            # through JSON text, where what is no number becomes null
            store.stages.finish(closed("finished", json.loads(result.model_dump_json())))
            step.also(bench, result)
    except NoLongerOurs:
        raise
    except (InfraError, KeyboardInterrupt, SystemExit):
        store.stages.finish(closed("failed", reason=_INTERRUPTED))
        raise
    except Llm4llmError as error:
        reason = Reason(code=error.code, text=str(error))
        store.stages.finish(closed("failed", reason=reason))
        recorder(_event(job, "stage_finished", step.stage, f"{step.stage.value} failed: {reason.text}"))
        return Ending(JobStatus.FAILED, reason)
    except BaseException as error:
        reason = Reason(code="internal_error", text=f"a fault of llm4llm: {type(error).__name__}: {error}")
        store.stages.finish(closed("failed", reason=reason))
        raise
    recorder(_event(job, "stage_finished", step.stage, f"{step.stage.value} finished"))
    return None


def end(job: Job, reached: Ending, store: Store, clock: Clock, progress: Progress) -> Job:
    """The job as it has ended; the move and its event are stored together, so that whoever follows the events sees exactly one end."""
    at = iso(clock.now())
    with store.transaction():
        ended = move(store, job.id, reached.status, reached.reason, at)
        event = _event(job, "decision", ended.stage, f"{reached.status.value}: {reached.reason.text}")
        if ended.status is reached.status:
            store.events.add(event, at)
    progress(event)
    return ended


def _event(job: Job, kind: str, stage: StageName | None, text: str) -> Event:
    return Event.model_validate({"job": job.id, "kind": kind, "stage": stage, "text": text})
