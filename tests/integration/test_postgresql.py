"""The same store on a real PostgreSQL server, started for these tests alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from postgresql_server import free_port, new_database, running_server

from llm4llm.errors import StoreUnavailable
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Trial
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, Request, StageName
from llm4llm.schema.run import StageRun
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Failed
from llm4llm.store import DatabaseTooNew, Store, open_store
from llm4llm.store.rows import Base

AT = "2025-01-01T00:00:00.000000+00:00"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_server() as url:
        yield url


@pytest.fixture
def url(server: str) -> Iterator[str]:
    with new_database(server) as url:
        yield url


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    store = open_store(url, tmp_path)
    yield store
    store.close()


def job() -> Job:
    request = Request(script="/s.py", script_sha256="0" * 64, working_directory="/", python="python3", environment={"ODD": "a\0b"})
    return Job(id="job_1", request=request, status=JobStatus.QUEUED, created_at=AT)


def test_migrations_make_what_the_rows_say(store: Store) -> None:
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_openers_at_once_migrate_once(url: str, tmp_path: Path) -> None:
    def opened(_: int) -> int:
        store = open_store(url, tmp_path)
        try:
            return len(store.jobs.latest())
        finally:
            store.close()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(opened, range(4))) == [0] * 4


def test_a_move_happens_once_however_many_try(store: Store) -> None:
    store.jobs.add(job())
    assert store.jobs.get("job_1") == job()

    def take(_: int) -> bool:
        return store.jobs.move("job_1", {JobStatus.QUEUED}, JobStatus.RUNNING)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(take, range(8))) == 1


def test_everything_is_read_back_as_it_was_stored(store: Store) -> None:
    task = Task(
        id="task_1", hotspot="h_1", module_class="Slow", module_path="slow", root="r0", phase="forward", share=0.5,
        family="f", calls=2, device="cpu", dtypes=("float32",), target="cpu",
    )  # fmt: skip
    candidate = Candidate(id="cand_1", task="task_1", sha256="1" * 64, author="seeds:slow", hypothesis="NUL \0 and half a pair \ud800")
    event = Event(job="job_1", kind="note", text="printed \0", facts={"best": 1.5})
    with store.transaction():
        store.jobs.add(job())
        store.candidates.add_tasks("job_1", (task,))
        store.candidates.record("job_1", Trial(candidate=candidate, verdict=Failed(kind="runtime", reason="odd \0")), "episode", AT)
        store.events.add(event, AT)
        attempt = store.stages.start("job_1", StageName.CAPTURE, AT)
    store.stages.finish(
        StageRun(job="job_1", stage=StageName.CAPTURE, attempt=attempt, status="finished", result={"a": [1, None]},
                 seconds=0.5, started_at=AT, ended_at=AT)
    )  # fmt: skip
    assert store.candidates.tasks("job_1") == (task,)
    (trial,) = store.candidates.trials("job_1", "episode")
    assert trial.verdict == Failed(kind="runtime", reason="odd \0")
    assert store.events.of("job_1") == (event,)
    assert store.stages.result("job_1", StageName.CAPTURE) == {"a": [1, None]}


def test_a_newer_schema_is_left_alone(store: Store, url: str, tmp_path: Path) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
    with pytest.raises(DatabaseTooNew, match="upgrade llm4llm"):
        open_store(url, tmp_path)


def test_no_server_says_so_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"tester:\*\*\*@") as raised:
        open_store(f"postgresql://tester:hunter2@127.0.0.1:{free_port()}/jobs", tmp_path)
    assert "hunter2" not in str(raised.value)
