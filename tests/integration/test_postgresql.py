"""The same store on a real PostgreSQL server, started for these tests alone."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

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


def binary(name: str) -> Path:
    """A server program: the newest Debian version, else what PATH holds. Its absence fails the test unless that was asked for."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3].split(".")[0]))
    found = versions[-1] if versions else shutil.which(name)
    if found is None:
        if os.environ.get("LLM4LLM_NO_POSTGRESQL") == "1":
            pytest.skip("LLM4LLM_NO_POSTGRESQL=1: there is no PostgreSQL server on this machine")
        pytest.fail(f"{name} is not here: install the Debian package postgresql, or set LLM4LLM_NO_POSTGRESQL=1 to skip these tests")
    return Path(found)


def unprivileged() -> tuple[list[str], int | None]:
    """What to put before a command so that the server does not run as root, which it refuses; and that user's id."""
    if os.geteuid() != 0:
        return [], None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_uid
    pytest.fail("there is no user that the server could run as")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """URL of an empty server's maintenance database, on loopback."""
    initdb, postgres = binary("initdb"), binary("postgres")
    prefix, uid = unprivileged()
    # not pytest's own folder: that is closed to the user that the server runs as
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder)}
    try:
        if uid is not None:
            os.chown(folder, uid, -1)
        cluster = folder / "data"
        made = subprocess.run(
            [*prefix, str(initdb), "-D", str(cluster), "-U", "tester", "--auth=trust", "--encoding=UTF8", "--no-sync"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        port = free_port()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*prefix, str(postgres), "-D", str(cluster), "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"],
                cwd=folder, env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_for(port, process, folder / "log")
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="tester", dbname="postgres", connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


@pytest.fixture
def url(server: str) -> Iterator[str]:
    """A new database of its own."""
    import psycopg

    name = f"jobs_{os.urandom(4).hex()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    yield server.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)".encode())


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
