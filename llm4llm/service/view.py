"""How far a job is. Made to be asked often: what was read once is read again only after something has happened."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import PurePosixPath

from llm4llm.kit import Clock, sha256_text
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, StageName
from llm4llm.schema.progress import Best, JobView, Spend
from llm4llm.store import Store
from llm4llm.store.listing import Mark

# share of a job's time, roughly: only progress bars depend on it
_WEIGHTS = {
    StageName.CAPTURE: 0.20,
    StageName.PROFILE: 0.10,
    StageName.TASK: 0.05,
    StageName.EPISODE: 0.20,
    StageName.VERDICT: 0.10,
    StageName.ACCEPTANCE: 0.30,
    StageName.BUNDLE: 0.05,
}
_NEARLY = 0.95  # of a stage that has used up its share but still runs
_REMEMBERED = 4096
_NONE_YET = Best()


@dataclass(frozen=True)
class _Known:
    """What was read of a job when it bore this mark."""

    mark: Mark
    job: Job
    spent_s: float
    done: frozenset[StageName]
    running_since: float | None  # seconds since 1970
    best: Best = _NONE_YET
    left: tuple[float, float] | None = None  # seconds of the budget, and when that was


class Views:
    """Several threads may use one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def at_hand(self, job_id: str, mark: Mark) -> JobView | None:
        """The job as it is now, if that needs no look at the database; `mark` was just read."""
        with self._lock:
            known = self._known.get(job_id)
        return _view(known, self._clock.now().timestamp()) if known is not None and known.mark == mark else None

    def of(self, job_id: str, mark: Mark) -> JobView:
        """The job as it is now; `mark` was just read."""
        found = self.at_hand(job_id, mark)
        if found is not None:
            return found
        with self._reading:  # many ask for a job that has just changed: one reads it for all
            found = self.at_hand(job_id, mark)
            if found is not None:
                return found
            with self._lock:
                before = self._known.get(job_id)
            known = self._read(job_id, mark, before)
            with self._lock:
                self._known[job_id] = known
                self._known.move_to_end(job_id)
                while len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        return _view(known, self._clock.now().timestamp())

    def _read(self, job_id: str, mark: Mark, before: _Known | None) -> _Known:
        job = self._store.jobs.get(job_id)
        spent, since, done = 0.0, None, set()
        for run in self._store.stages.times(job_id):
            spent += run.seconds or 0.0
            if run.status == "finished":
                done.add(run.stage)
            elif run.status == "running":
                since = datetime.fromisoformat(run.started_at).timestamp()
        known = _Known(mark, job, spent, frozenset(done), since)
        last = 0
        if before is not None:
            known, last = replace(known, best=before.best, left=before.left), before.mark.last_event
        while found := self._store.events.after(job_id, last):
            for one in found:
                known = _after(known, one.event, one.at)
            last = found[-1].id
        # events that came after the mark are folded again next time, which changes nothing
        return known


def etag(mark: Mark) -> str:
    """Equal as long as nothing has happened to the job; weak, because times in the body go on."""
    text = f"{mark.status}|{mark.stage}|{mark.cancel_requested}|{mark.last_event}"
    return f'W/"{sha256_text(text)[:24]}"'


def _after(known: _Known, event: Event, at: str) -> _Known:
    facts = event.facts
    left = facts.get("budget_left_s")
    if isinstance(left, int | float):
        known = replace(known, left=(float(left), datetime.fromisoformat(at).timestamp()))
    if event.kind != "trial":
        return known
    module, whole = known.best.module_speedup, known.best.end_to_end_speedup
    best, speedup = facts.get("best"), facts.get("speedup")
    if isinstance(best, int | float):
        module = max(module or 0.0, float(best))
    if isinstance(speedup, int | float) and facts.get("decision") == "keep" and not facts.get("fresh_process"):
        # the last one: the whole set is measured after its members
        whole = float(speedup) if len(facts.get("patches", [])) > 1 else max(whole or 0.0, float(speedup))
    return replace(known, best=Best(module_speedup=module, end_to_end_speedup=whole))


def _view(known: _Known, now: float) -> JobView:
    job, budget = known.job, known.job.request.budget.seconds
    runs = job.status is JobStatus.RUNNING
    open_s = max(0.0, now - known.running_since) if runs and known.running_since is not None else 0.0
    eta = None
    if runs:
        left, at = known.left or (budget, now)
        eta = round(max(0.0, left - (now - at)), 1)
    return JobView(
        id=job.id,
        status=job.status,
        stage=job.stage,
        progress=_progress(known, open_s),
        best=known.best,
        spend=Spend(seconds=round(known.spent_s + open_s, 3), budget_seconds=budget),
        eta_seconds=eta,
        reason=job.reason,
        cancel_requested=known.mark.cancel_requested,
        script=PurePosixPath(job.request.script).name,
        target=job.request.target,
        agent=job.request.agent,
        objective=job.request.objective,
        created_at=job.created_at,
        ended_at=job.ended_at,
    )


def _progress(known: _Known, open_s: float) -> float:
    if known.job.status is JobStatus.SUCCEEDED:
        return 1.0
    done = sum(_WEIGHTS[stage] for stage in known.done)
    stage = known.job.stage
    if open_s > 0 and stage is not None and stage not in known.done:
        share = open_s / (_WEIGHTS[stage] * known.job.request.budget.seconds)
        done += _WEIGHTS[stage] * min(_NEARLY, share)
    return round(min(1.0, done), 4)
