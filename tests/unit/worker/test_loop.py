"""The lease loop with a clock and a pause of its own."""

import logging
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from llm4llm.errors import StoreUnavailable
from llm4llm.kit import Bell, FrozenClock, iso
from llm4llm.pipeline.ending import Ending
from llm4llm.pipeline.transitions import not_before
from llm4llm.schema.job import Job, JobStatus, Request, StageName
from llm4llm.schema.reason import Reason
from llm4llm.settings import Settings
from llm4llm.store import Store, open_store
from llm4llm.worker import loop
from llm4llm.worker.held import Held, Station
from llm4llm.worker.loop import Rounds, work

ENDED = Ending(JobStatus.SUCCEEDED, Reason(code="done", text="done"))


class Yard:
    """A station whose pauses move the clock, and which stops after so many of them."""

    def __init__(self, folder: Path, pauses: int) -> None:
        self.clock = FrozenClock()
        self.store: Store = open_store(f"sqlite:///{folder}/jobs.db", folder / "blobs")
        self.station = Station(Settings(home=folder), self.store, self.clock, random.Random(0))
        self.stop = Bell()
        self.left = pauses
        self.paused: list[float] = []
        self.folder = folder

    def add(self, number: int = 1) -> str:
        request = Request(script="/s.py", script_sha256="0", working_directory="/", python="python3")
        self.store.jobs.add(Job(id=f"job_{number}", request=request, status=JobStatus.QUEUED, created_at=f"2025-{number}"))
        return f"job_{number}"

    def pause(self, seconds: float) -> bool:
        self.paused.append(seconds)
        self.clock.sleep(seconds)
        self.left -= 1
        if self.left <= 0:
            self.stop.ring()
        return self.stop.rung


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path, pauses=3)
    yield yard
    yard.store.close()
    yard.stop.close()


def ending(job: Job, held: Held) -> Job:
    (held.folder / "left over").write_text("x")
    held.store.jobs.move(job.id, {JobStatus.RUNNING}, ENDED.status, ENDED.reason, iso(held.clock.now()))
    return held.store.jobs.get(job.id)


def test_jobs_are_run_one_after_the_other_and_then_waited_for(yard: Yard) -> None:
    jobs = [yard.add(1), yard.add(2)]
    seen: list[str] = []

    def walk(job: Job, held: Held) -> Job:
        seen.append(job.id)
        return ending(job, held)

    assert work(yard.station, Rounds(poll_s=1.0), yard.stop, walk, yard.pause) == 2
    assert seen == jobs
    assert len(set(yard.paused)) == 3  # spread
    assert all(0.5 <= pause <= 1.5 for pause in yard.paused)
    assert [entry.name for entry in (yard.folder / "jobs" / "job_1").iterdir()] == []


def test_once_is_one_job_or_none(yard: Yard) -> None:
    yard.add(1)
    yard.add(2)
    assert work(yard.station, Rounds(1.0, once=True), yard.stop, ending, yard.pause) == 1
    assert work(yard.station, Rounds(1.0, once=True), yard.stop, ending, yard.pause) == 1
    assert work(yard.station, Rounds(1.0, once=True), yard.stop, ending, yard.pause) == 0
    assert yard.paused == []


def test_the_machine_s_fault_puts_the_job_back_for_later(yard: Yard) -> None:
    job = yard.add()

    def walk(job: Job, held: Held) -> Job:
        held.store.stages.start(job.id, StageName.CAPTURE, iso(held.clock.now()))
        raise StoreUnavailable("the disk went away")

    work(yard.station, Rounds(1.0), yard.stop, walk, yard.pause)
    assert yard.store.jobs.get(job).status is JobStatus.QUEUED
    assert yard.store.jobs.attempts(job) == 1
    assert yard.store.stages.runs(job)[0].status == "failed"
    assert yard.store.leases.held() == {}
    yard.clock.sleep(10)
    assert yard.store.leases.waiting(iso(yard.clock.now())) == 1


def test_a_fault_of_ours_outside_of_the_stages_ends_as_poison(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    job = yard.add()
    yard.left = 200

    def walk(job: Job, held: Held) -> Job:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        work(yard.station, Rounds(1.0), yard.stop, walk, yard.pause)
    ended = yard.store.jobs.get(job)
    assert ended.reason is not None
    assert (ended.status, ended.reason.code) == (JobStatus.FAILED, "poison")
    assert [getattr(record, "job", None) for record in caplog.records] == [job] * 3


def test_a_database_that_does_not_answer_is_asked_less_and_less_often(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise StoreUnavailable("the database is gone")

    yard.left = 8
    monkeypatch.setattr(yard.store.leases, "claim", unreachable)
    assert work(yard.station, Rounds(1.0), yard.stop, ending, yard.pause) == 0
    assert yard.paused[0] < 4 < yard.paused[3]
    assert max(yard.paused) <= 45


def test_a_rung_bell_hands_the_job_back(yard: Yard) -> None:
    job = yard.add()

    def walk(job: Job, held: Held) -> Job:
        yard.stop.ring()
        while True:
            held.pause(0.01)

    assert work(yard.station, Rounds(1.0), yard.stop, walk, yard.pause) == 1
    assert yard.store.jobs.get(job).status is JobStatus.QUEUED
    assert yard.store.jobs.attempts(job) == 0
    assert yard.paused == []


def test_a_job_that_was_taken_away_is_given_up_in_silence(yard: Yard) -> None:
    job = yard.add()

    def walk(job: Job, held: Held) -> Job:
        assert yard.store.leases.take(job.id, loop.new_hold("b", yard.clock, 60), lambda holder: True)
        return ending(job, held)

    work(yard.station, Rounds(1.0, once=True), yard.stop, walk, yard.pause)
    assert yard.store.jobs.get(job).status is JobStatus.RUNNING
    assert yard.store.leases.held() == {job: "b"}


def test_the_back_off_grows_to_a_limit() -> None:
    clock = FrozenClock()
    times = [not_before(attempts, clock) for attempts in range(12)]
    assert times[0] == times[1] == iso(clock.now() + timedelta(seconds=5))
    assert times[2] == iso(clock.now() + timedelta(seconds=10))
    assert times[-1] == times[-2] == iso(clock.now() + timedelta(seconds=300))
