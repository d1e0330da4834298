"""Leases on jobs and devices, on both databases."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import postgresql_server
import pytest
from sqlalchemy.exc import SQLAlchemyError

from llm4llm.errors import DeviceLost, HandedBack, LeaseLost, StoreUnavailable
from llm4llm.kit import iso
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Trial
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, Request, StageName
from llm4llm.schema.run import StageRun
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Failed
from llm4llm.store import Fence, Hold, Queue, Store, open_store

REQUEST = Request(script="/s.py", script_sha256="0" * 64, working_directory="/", python="python3")
TASK = Task(
    id="task_1", hotspot="h_1", module_class="Slow", module_path="slow", root="r0", phase="forward", share=0.5,
    family="f", calls=2, device="cpu", dtypes=("float32",), target="cpu",
)  # fmt: skip


def at(seconds: float) -> str:
    return iso(datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))


def hold(holder: str, now: float = 0, seconds: float = 30) -> Hold:
    return Hold(holder, at(now), at(now + seconds))


def nobody(holder: str) -> bool:
    return False


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server.started() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with postgresql_server.database(request.getfixturevalue("server")) as url:
        yield url


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    store = open_store(url, tmp_path)
    yield store
    store.close()


def add(store: Store, number: int = 1, queue: Queue = Queue.WORKERS) -> str:
    job = Job(id=f"job_{number}", request=REQUEST, status=JobStatus.QUEUED, created_at=at(-1000 + number))
    store.jobs.add(job, queue)
    return job.id


def claimed(store: Store, holder: str, now: float = 0, max_attempts: int = 3) -> str | None:
    job = store.leases.claim(hold(holder, now), max_attempts)
    return job.id if job else None


def finish(store: Store, job: str, stage: StageName) -> None:
    attempt = store.stages.start(job, stage, at(0))
    facts = {"job": job, "stage": stage, "attempt": attempt, "status": "finished", "result": {}, "started_at": at(0)}
    store.stages.finish(StageRun.model_validate(facts))


def test_the_oldest_waiting_job_comes_first_and_is_running_and_leased(store: Store) -> None:
    second, first = add(store, 2), add(store, 1)
    assert store.leases.waiting(at(0)) == 2
    assert claimed(store, "a") == first
    assert store.jobs.get(first).status is JobStatus.RUNNING
    assert claimed(store, "b") == second
    assert store.leases.held() == {first: "a", second: "b"}
    assert claimed(store, "c") is None
    assert store.leases.waiting(at(0)) == 0


def test_every_job_is_claimed_once_however_many_ask_at_once(store: Store) -> None:
    jobs = [add(store, number) for number in range(24)]

    def claim(number: int) -> list[str]:
        mine = []
        while (job := claimed(store, f"w{number}")) is not None:
            mine.append(job)
        return mine

    with ThreadPoolExecutor(6) as pool:
        taken = [job for mine in pool.map(claim, range(6)) for job in mine]
    assert sorted(taken) == sorted(jobs)


def test_a_lease_that_has_run_out_is_taken_over_and_the_open_stage_closed(store: Store) -> None:
    job = add(store)
    assert claimed(store, "a") == job
    store.stages.start(job, StageName.CAPTURE, at(1))
    assert claimed(store, "b", now=29) is None
    assert claimed(store, "b", now=30) == job
    (run,) = store.stages.runs(job)
    assert run.status == "failed"
    assert run.reason is not None
    assert run.reason.code == "interrupted"
    assert not store.leases.renew(job, hold("a", 31))
    assert store.leases.renew(job, hold("b", 31))
    assert claimed(store, "c", now=60) is None


def test_no_worker_takes_a_job_of_the_foreground(store: Store) -> None:
    job = add(store, queue=Queue.FOREGROUND)
    assert claimed(store, "a") is None
    assert store.leases.take(job, hold("f"), nobody)
    assert claimed(store, "a", now=1000) is None


def test_a_person_takes_a_job_unless_somebody_alive_has_it(store: Store) -> None:
    job = add(store)
    assert claimed(store, "a") == job
    assert not store.leases.take(job, hold("f", 1), nobody)
    assert store.leases.take(job, hold("f", 1), lambda holder: holder == "a")
    assert store.leases.take(job, hold("g", 40), nobody)
    assert store.jobs.attempts(job) == 1
    assert store.jobs.move(job, {JobStatus.RUNNING}, JobStatus.SUCCEEDED, None, at(41))
    assert not store.leases.take(job, hold("h", 100), nobody)
    assert store.leases.held() == {}


def test_a_lost_lease_stops_every_write(store: Store) -> None:
    job = add(store)
    assert claimed(store, "a") == job
    ours = store.fenced(Fence(job, "a"))
    attempt = ours.stages.start(job, StageName.CAPTURE, at(1))
    ours.candidates.add_tasks(job, (TASK,))
    assert claimed(store, "b", now=60) == job
    before = (store.jobs.get(job), store.stages.runs(job), store.events.of(job))
    run = {"job": job, "stage": "capture", "attempt": attempt, "status": "finished", "result": {}, "started_at": at(1)}
    trial = Trial(
        candidate=Candidate(id="c", task="task_1", sha256="1" * 64, author="a", hypothesis="h"), verdict=Failed(kind="k", reason="r")
    )
    writes = [
        lambda: ours.stages.start(job, StageName.CAPTURE, at(61)),
        lambda: ours.stages.finish(StageRun.model_validate(run)),
        lambda: ours.events.add(Event(job=job, kind="note", text="late"), at(61)),
        lambda: ours.candidates.record(job, trial, "episode", at(61)),
        lambda: ours.jobs.enter(job, StageName.PROFILE),
        lambda: ours.jobs.move(job, {JobStatus.RUNNING}, JobStatus.SUCCEEDED, None, at(61)),
        lambda: ours.jobs.put_back(job, {JobStatus.RUNNING}, None),
    ]
    for write in writes:
        with pytest.raises(LeaseLost):
            store.fenced(Fence(job, "a")) and write()
    assert (store.jobs.get(job), store.stages.runs(job), store.events.of(job)) == before
    assert store.candidates.all(job) == ()
    assert not store.leases.hand_back(job, hold("a", 61), None, True)
    assert store.leases.held() == {job: "b"}


def test_a_fence_asks_again_for_each_write(store: Store) -> None:
    job = add(store)
    claimed(store, "a")
    fenced = store.fenced(Fence(job, "a"))
    fenced.jobs.enter(job, StageName.CAPTURE)
    claimed(store, "b", now=60)
    with pytest.raises(LeaseLost):
        fenced.jobs.enter(job, StageName.PROFILE)
    assert store.jobs.get(job).stage is StageName.CAPTURE


def test_what_was_timed_on_a_lost_device_is_not_stored(store: Store) -> None:
    job = add(store)
    claimed(store, "a")
    fence = Fence(job, "a")
    fenced = store.fenced(fence)
    assert store.devices.take("gpu", hold("a"), nobody)
    fence.device = "gpu"
    fenced.jobs.enter(job, StageName.PROFILE)
    assert store.devices.take("gpu", hold("b", 60), nobody)
    with pytest.raises(DeviceLost):
        fenced.jobs.enter(job, StageName.TASK)
    fence.device = None
    with pytest.raises(DeviceLost):  # what was shut stays shut
        fenced.jobs.enter(job, StageName.TASK)


def test_a_shut_fence_refuses_and_others_go_on(store: Store) -> None:
    job = add(store)
    claimed(store, "a")
    fence = Fence(job, "a")
    fence.shut_for(HandedBack(job))
    fence.shut_for(LeaseLost(job))
    with pytest.raises(HandedBack):
        store.fenced(fence).jobs.enter(job, StageName.PROFILE)
    store.jobs.enter(job, StageName.PROFILE)


def test_a_job_that_gets_nowhere_ends_as_poison(store: Store) -> None:
    job, other = add(store, 1), add(store, 2)
    for number in range(3):
        assert claimed(store, f"a{number}", now=100 * number) == job
        store.jobs.enter(job, StageName.CAPTURE)
    assert claimed(store, "b", now=300) == other
    ended = store.jobs.get(job)
    assert ended.status is JobStatus.FAILED
    assert ended.reason is not None
    assert ended.reason.code == "poison"
    assert "3 times" in ended.reason.text
    assert "capture" in ended.reason.text
    assert [event.kind for event in store.events.of(job)] == ["decision"]
    assert store.leases.held() == {other: "b"}


def test_progress_lets_the_attempts_begin_anew(store: Store) -> None:
    job = add(store)
    for number in range(6):
        assert claimed(store, f"a{number}", now=100 * number) == job
        if number in (1, 3):
            finish(store, job, list(StageName)[number])
    assert store.jobs.get(job).status is JobStatus.RUNNING
    assert claimed(store, "z", now=700) == job
    assert claimed(store, "z", now=800) is None
    assert store.jobs.get(job).reason.code == "poison"  # type: ignore[union-attr]


def test_a_job_to_be_cancelled_is_no_poison_and_waits_for_no_back_off(store: Store) -> None:
    job = add(store)
    for number in range(3):
        assert claimed(store, f"a{number}", now=100 * number) == job
    assert store.leases.hand_back(job, hold("a2", 201), at(10_000), True)
    assert claimed(store, "b", now=300) is None
    assert store.jobs.ask_to_cancel(job, at(300))
    assert claimed(store, "b", now=300) == job


@pytest.mark.parametrize(("counts", "attempts"), [(True, 1), (False, 0)])
def test_handing_back_frees_the_job_at_once_or_later(store: Store, counts: bool, attempts: int) -> None:
    job = add(store)
    claimed(store, "a")
    store.stages.start(job, StageName.CAPTURE, at(1))
    assert store.leases.hand_back(job, hold("a", 2), at(10) if counts else None, counts)
    assert store.jobs.get(job).status is JobStatus.QUEUED
    assert store.jobs.attempts(job) == attempts
    assert store.stages.runs(job)[0].status == "failed"
    assert store.leases.held() == {}
    assert claimed(store, "b", now=3) == (None if counts else job)
    assert claimed(store, "b", now=10) == (job if counts else None)


def test_a_device_is_one_holder_s_until_released_run_out_or_gone(store: Store) -> None:
    take = store.devices.take
    assert take("gpu", hold("a"), nobody)
    assert not take("gpu", hold("b", 1), nobody)
    assert take("other", hold("b", 1), nobody)
    assert take("gpu", hold("a", 1), nobody)
    assert store.devices.renew("gpu", hold("a", 5))
    assert not take("gpu", hold("b", 34), nobody)
    assert take("gpu", hold("b", 35), nobody)
    assert not store.devices.renew("gpu", hold("a", 36))
    assert not store.devices.release("gpu", "a")
    assert take("gpu", hold("c", 37), lambda holder: holder == "b")
    assert store.devices.release("gpu", "c")
    assert store.devices.held() == {"other": "b"}


def test_a_device_is_given_to_one_of_many(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda number: store.devices.take("gpu", hold(f"h{number}"), nobody), range(16))) == 1


def test_reading_waits_for_no_writer(store: Store, url: str, tmp_path: Path) -> None:
    job = add(store)
    other = open_store(url, tmp_path)
    with store.transaction():
        store.jobs.enter(job, StageName.CAPTURE)
        # a lock that a reader had to wait for would be held until this block is left
        assert other.jobs.get(job).stage is None
        assert other.leases.waiting(at(0)) == 1
    assert other.jobs.get(job).stage is StageName.CAPTURE
    other.close()


def test_a_reading_transaction_is_one_snapshot_and_writes_nothing(store: Store, url: str, tmp_path: Path) -> None:
    job = add(store)
    other = open_store(url, tmp_path)
    with store.reading():
        assert store.jobs.get(job).stage is None
        other.jobs.enter(job, StageName.CAPTURE)
        assert store.jobs.attempts(job) == 0
        assert not store.jobs.cancel_asked(job)
        assert len(store.jobs.latest()) == 1
        with pytest.raises(RuntimeError, match="can't write"):
            store.jobs.enter(job, StageName.PROFILE)
    assert store.jobs.get(job).stage is StageName.CAPTURE
    other.close()


def test_the_database_refuses_a_write_in_a_reading_transaction(store: Store) -> None:
    with store._sessions.reading() as session, pytest.raises((SQLAlchemyError, StoreUnavailable)):
        session.connection().exec_driver_sql("update jobs set stage = 'x'")
    add(store)
