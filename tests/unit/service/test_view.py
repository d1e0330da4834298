"""How far a job is said to be; time stands still unless it is moved."""

from pathlib import Path

import pytest

from llm4llm.kit import FrozenClock, iso
from llm4llm.schema.event import Event
from llm4llm.schema.job import Budget, Job, JobStatus, Request, StageName
from llm4llm.schema.progress import JobView
from llm4llm.schema.reason import Reason
from llm4llm.schema.run import StageRun
from llm4llm.service.view import Views, etag
from llm4llm.store import Store, open_store


class Watched:
    """One job, what happens to it, and how it looks."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store(f"sqlite:///{folder}/jobs.db", folder / "blobs")
        self.clock = FrozenClock()
        self.views = Views(self.store, self.clock)
        request = Request(script="a/infer.py", script_sha256="0" * 64, working_directory=".", python="", budget=Budget(seconds=100.0))
        self.store.jobs.add(Job(id="job_1", request=request, status=JobStatus.QUEUED, created_at=self.now))

    @property
    def now(self) -> str:
        return iso(self.clock.now())

    def look(self) -> JobView:
        return self.views.of("job_1", self.store.listing.marks(("job_1",))["job_1"])

    def etag(self) -> str:
        return etag(self.store.listing.marks(("job_1",))["job_1"])

    def run(self, stage: StageName, seconds: float) -> None:
        self.start(stage)
        self.clock.sleep(seconds)
        facts = {"job": "job_1", "stage": stage, "attempt": 1, "status": "finished", "result": {}}
        self.store.stages.finish(StageRun.model_validate({**facts, "seconds": seconds, "started_at": self.now, "ended_at": self.now}))
        self.happen("stage_finished")

    def start(self, stage: StageName) -> None:
        self.store.jobs.move("job_1", {JobStatus.QUEUED, JobStatus.RUNNING}, JobStatus.RUNNING)
        self.store.jobs.enter("job_1", stage)
        self.store.stages.start("job_1", stage, self.now)
        self.happen("stage_started")

    def happen(self, kind: str, **facts: object) -> None:
        self.store.events.add(Event.model_validate({"job": "job_1", "kind": kind, "text": kind, "facts": facts}), self.now)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_queued_job(watched: Watched) -> None:
    view = watched.look()
    assert (view.status, view.progress, view.eta_seconds, view.spend.seconds, view.script) == (JobStatus.QUEUED, 0.0, None, 0.0, "infer.py")


def test_progress_and_spend_go_on_with_time_and_stages(watched: Watched) -> None:
    watched.run(StageName.CAPTURE, 10.0)
    first = watched.look()
    assert first.spend.seconds == 10.0
    watched.start(StageName.PROFILE)
    seen = [watched.look().progress]
    for _ in range(4):
        watched.clock.sleep(5.0)
        seen.append(watched.look().progress)
    assert seen == sorted(seen)
    assert first.progress <= seen[0] < seen[-1] < 0.3
    assert watched.look().spend.seconds == 30.0


def test_the_end_is_expected_when_the_budget_is_used_up(watched: Watched) -> None:
    watched.start(StageName.CAPTURE)
    watched.happen("note", budget_left_s=80.0)
    assert watched.look().eta_seconds == 80.0
    watched.clock.sleep(30.0)
    assert watched.look().eta_seconds == 50.0
    watched.clock.sleep(100.0)
    assert watched.look().eta_seconds == 0.0


def test_the_best_so_far(watched: Watched) -> None:
    for best in (1.2, 1.7, 1.5):
        watched.happen("trial", best=best)
        watched.look()
    watched.happen("trial", speedup=1.1, decision="drop")
    assert watched.look().best.model_dump() == {"module_speedup": 1.7, "end_to_end_speedup": None}
    watched.happen("trial", speedup=1.3, decision="keep")
    assert watched.look().best.end_to_end_speedup == 1.3
    assert Views(watched.store, watched.clock).of("job_1", watched.store.listing.marks(("job_1",))["job_1"]).best.module_speedup == 1.7


def test_every_change_changes_the_etag_and_time_does_not(watched: Watched) -> None:
    seen = [watched.etag()]

    def changed() -> bool:
        seen.append(watched.etag())
        return seen[-1] not in seen[:-1]

    watched.clock.sleep(60.0)
    assert not changed()
    watched.happen("note")
    assert changed()
    watched.store.jobs.ask_to_cancel("job_1", watched.now)
    assert changed()
    watched.store.jobs.move("job_1", {JobStatus.QUEUED}, JobStatus.CANCELLED, Reason(code="cancelled", text="x"), watched.now)
    assert changed()
    view = watched.look()
    assert (view.status, view.cancel_requested, view.eta_seconds) == (JobStatus.CANCELLED, True, None)


def test_a_job_that_succeeded_is_done_however_few_stages_it_needed(watched: Watched) -> None:
    watched.run(StageName.CAPTURE, 1.0)
    watched.store.jobs.move("job_1", {JobStatus.RUNNING}, JobStatus.SUCCEEDED, Reason(code="no_hotspot", text="x"), watched.now)
    assert watched.look().progress == 1.0
