"""Rows, transactions and blobs on SQLite."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy.exc import IntegrityError

from llm4llm.assets import migrations_dir
from llm4llm.errors import BadSettings, StoreUnavailable, UnknownJob
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Trial
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, Request, StageName
from llm4llm.schema.reason import Reason
from llm4llm.schema.run import StageRun
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Failed
from llm4llm.store import BlobDamaged, DatabaseCorrupt, DatabaseForeign, DatabaseTooNew, Hold, Store, open_store
from llm4llm.store.engine import make_engine
from llm4llm.store.rows import Base

AT = "2025-01-01T00:00:00.000000+00:00"


def make_job(job_id: str = "job_1", status: JobStatus = JobStatus.QUEUED) -> Job:
    request = Request(script="/s.py", script_sha256="0" * 64, working_directory="/", python="/usr/bin/python3")
    return Job(id=job_id, request=request, status=status, created_at=AT)


def make_task(task_id: str = "task_1") -> Task:
    return Task(
        id=task_id, hotspot="h_1", module_class="Slow", module_path="slow", root="r0", phase="forward", share=0.5,
        family="f", calls=2, device="cpu", dtypes=("float32",), target="cpu",
    )  # fmt: skip


def make_trial(candidate_id: str = "cand_1", hypothesis: str = "it may be faster") -> Trial:
    candidate = Candidate(id=candidate_id, task="task_1", sha256="1" * 64, author="seeds:slow", hypothesis=hypothesis)
    return Trial(candidate=candidate, verdict=Failed(kind="runtime", reason="it raised"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")


def test_migrations_make_what_the_rows_say(store: Store) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_sqlite_is_in_wal_with_foreign_keys(store: Store) -> None:
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("pragma foreign_keys").scalar() == 1
    with pytest.raises(IntegrityError):
        store.stages.start("job_nowhere", StageName.CAPTURE, AT)


def test_the_database_is_its_owner_s_alone(store: Store, tmp_path: Path) -> None:
    store.jobs.add(make_job())
    assert {file.stat().st_mode & 0o077 for file in tmp_path.glob("jobs.db*") if file.suffix != ".lock"} == {0}


def test_a_job_is_read_back_as_it_was_stored(store: Store) -> None:
    store.jobs.add(make_job())
    assert store.jobs.get("job_1") == make_job()
    with pytest.raises(UnknownJob):
        store.jobs.get("job_2")


def test_a_move_happens_once_however_many_try(store: Store) -> None:
    store.jobs.add(make_job())

    def take(_: int) -> bool:
        return store.jobs.move("job_1", {JobStatus.QUEUED}, JobStatus.RUNNING)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(16))) == 1
    assert store.jobs.get("job_1").status == JobStatus.RUNNING


def test_a_transaction_is_whole_or_nothing(store: Store) -> None:
    store.jobs.add(make_job())

    def broken() -> None:
        with store.transaction():
            store.jobs.enter("job_1", StageName.PROFILE)
            store.events.add(Event(job="job_1", kind="note", text="never seen"), AT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert store.jobs.get("job_1").stage is None
    assert store.events.of("job_1") == ()


def test_events_are_counted_and_found_by_kind(store: Store) -> None:
    store.jobs.add(make_job())
    assert (store.events.count("job_1"), store.events.last_of("job_1", "output")) == (0, None)
    for number in range(3):
        store.events.add(Event(job="job_1", kind="output", text=str(number)), AT)
        store.events.add(Event(job="job_1", kind="note", text="between"), AT)
    found = store.events.last_of("job_1", "output")
    assert (store.events.count("job_1"), found and found.text) == (6, "2")


def run_of(attempt: int, status: str = "finished", result: dict[str, int] | None = None) -> StageRun:
    return StageRun.model_validate(
        {"job": "job_1", "stage": "capture", "attempt": attempt, "status": status, "result": result, "seconds": 1.0,
         "started_at": AT, "ended_at": AT}
    )  # fmt: skip


def test_an_attempt_left_open_is_closed_as_interrupted(store: Store) -> None:
    store.jobs.add(make_job())
    assert store.stages.start("job_1", StageName.CAPTURE, AT) == 1
    assert store.stages.start("job_1", StageName.CAPTURE, AT) == 2
    store.stages.finish(run_of(2, result={"x": 1}))
    first, second = store.stages.runs("job_1")
    assert first.status == "failed"
    assert first.reason is not None
    assert first.reason.code == "interrupted"
    assert second.result == store.stages.result("job_1", StageName.CAPTURE) == {"x": 1}
    with pytest.raises(LookupError):
        store.stages.finish(run_of(2, result={"x": 2}))


def test_trials_keep_their_order_and_are_never_overwritten(store: Store) -> None:
    store.jobs.add(make_job())
    store.candidates.add_tasks("job_1", (make_task(),))
    odd = make_trial("cand_2", "a NUL \0 and half a pair \ud800")
    store.candidates.record("job_1", make_trial(), "episode", AT)
    store.candidates.record("job_1", odd, "episode", AT)
    store.candidates.record("job_1", make_trial(), "verdict", AT)
    assert [trial.candidate.id for trial in store.candidates.trials("job_1", "episode")] == ["cand_1", "cand_2"]
    assert store.candidates.trials("job_1", "verdict") == (make_trial(),)
    assert store.candidates.tasks("job_1") == (make_task(),)
    with pytest.raises(IntegrityError):
        store.candidates.record("job_1", make_trial(), "episode", AT)


def test_cancelling_leaves_word_unless_the_job_has_ended(store: Store) -> None:
    store.jobs.add(make_job())
    store.jobs.add(make_job("job_2", JobStatus.FAILED))
    assert store.jobs.ask_to_cancel("job_1", AT)
    assert not store.jobs.ask_to_cancel("job_2", AT)
    assert store.jobs.cancel_asked("job_1")
    assert not store.jobs.cancel_asked("job_2")
    reason = Reason(code="cancelled", text="as asked")
    assert store.jobs.move("job_1", {JobStatus.QUEUED}, JobStatus.CANCELLED, reason, AT)
    assert store.jobs.get("job_1").reason == reason


def test_blobs_are_verified_when_they_are_read(store: Store) -> None:
    sha256 = store.blobs.put(b"content")
    assert store.blobs.get(sha256) == store.blobs.path(sha256).read_bytes() == b"content"
    store.blobs.path(sha256).write_bytes(b"other")
    with pytest.raises(BlobDamaged):
        store.blobs.path(sha256)
    assert store.blobs.put(b"content") == sha256
    assert store.blobs.get(sha256) == b"content"
    with pytest.raises(BlobDamaged):
        store.blobs.get("0" * 64)
    with pytest.raises(ValueError):
        store.blobs.path("../../etc/passwd")


def test_two_openers_migrate_once(tmp_path: Path) -> None:
    def opened(_: int) -> int:
        store = open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
        try:
            return len(store.jobs.latest())
        finally:
            store.close()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(opened, range(8))) == [0] * 8


def test_jobs_of_an_older_version_stay_with_the_foreground(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    engine = make_engine(url)
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        request = make_job().request.model_dump_json()
        connection.exec_driver_sql(
            "insert into jobs (id, request, status, created_at) values ('job_1', ?, 'queued', ?)",
            (request, AT),
        )
    engine.dispose()
    store = open_store(url, tmp_path)
    assert store.jobs.get("job_1") == make_job()
    assert store.leases.waiting(AT) == 0
    assert store.leases.take("job_1", Hold("a", AT, AT), lambda holder: False)


def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"certainly not a database\n" * 200)
    with pytest.raises(DatabaseCorrupt, match="move it away"):
        open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path)


def test_damage_found_later_says_so(store: Store, tmp_path: Path) -> None:
    store.jobs.add(make_job())
    store.close()
    file = tmp_path / "jobs.db"
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * (file.stat().st_size - 4096))
    with pytest.raises(DatabaseCorrupt, match="damaged"):
        open_store(f"sqlite:///{file}", tmp_path).jobs.latest()


def test_a_newer_schema_is_left_alone(store: Store, tmp_path: Path) -> None:
    store.close()
    with sqlite3.connect(tmp_path / "jobs.db") as raw:
        raw.execute("update alembic_version set version_num = '9999'")
    with pytest.raises(DatabaseTooNew, match="upgrade llm4llm"):
        open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path)


def test_somebody_elses_tables_are_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "jobs.db") as raw:
        raw.execute("create table customers (id integer)")
    with pytest.raises(DatabaseForeign, match="customers"):
        open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path)


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable):
        open_store(f"sqlite:///{tmp_path}/file/jobs.db", tmp_path)


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/name", "sqlite://", "oops://x"])
def test_other_databases_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="sqlite:///FILE"):
        open_store(url, tmp_path)
