"""Real worker processes: killed, suspended, asked to go. Their stages are the chaos worker's, one of which hangs in a real child."""

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import postgresql_server
import pytest

from llm4llm.kit import SystemClock
from llm4llm.schema.job import Job, JobStatus, Request, StageName
from llm4llm.service.jobs import submit
from llm4llm.store import Queue, Store, open_store
from llm4llm.worker.fleet import Fleet
from llm4llm.worker.loop import Rounds

ROOT = Path(__file__).parents[2]
CHAOS = ROOT / "tests" / "chaos"
sys.path.append(str(CHAOS))

import chaos_run  # noqa: E402

COMMAND = [sys.executable, "-c", "from llm4llm.cli.main import main; main()"]
LEASE_S = 1.5
pytestmark = pytest.mark.timeout(280)


class Place:
    """One database, a token that every process of the test carries, and workers that are ended with it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.token = secrets.token_hex(8)
        self.store: Store = open_store(url, folder / "blobs")
        self.workers: list[subprocess.Popen[bytes]] = []

    def hand_in(self, *homes: str, queue: Queue = Queue.WORKERS) -> Job:
        for home in homes:
            for name in ("good", "wrong"):
                file = self.folder / home / "seeds" / name / "candidate.py"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f'"""{name}"""\n')
            # blobs are one place for every machine
            with contextlib.suppress(FileExistsError):
                (self.folder / home / "blobs").symlink_to(self.folder / "blobs")
        script = self.folder / "script.py"
        script.write_text("print(1)\n")
        request = Request(script=str(script), script_sha256="", working_directory=str(self.folder), python=sys.executable)
        return submit(request, self.store, SystemClock(), random.Random(), queue)

    def worker(self, home: str, stuck_in: StageName = StageName.EPISODE) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(CHAOS / "chaos_worker.py"), self.url, str(self.folder / home), self.token, str(LEASE_S), stuck_in]
        self.workers.append(subprocess.Popen(command, env=environment()))
        return self.workers[-1]

    def stuck(self, home: str) -> None:
        until((self.folder / home / "stuck").exists)

    def close(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGCONT)
            worker.kill()
            worker.wait()
        self.store.close()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql_server.started() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path}/jobs.db"
        else:
            url = stack.enter_context(postgresql_server.database(request.getfixturevalue("server")))
        place = Place(url, tmp_path)
        stack.callback(place.close)
        yield place


def ended(place: Place, job: Job) -> bool:
    return place.store.jobs.get(job.id).status is JobStatus.SUCCEEDED


def assert_ended_once(place: Place, job: Job) -> None:
    finished = Counter(run.stage for run in place.store.stages.runs(job.id) if run.status == "finished")
    assert finished == Counter(StageName)
    assert len([event for event in place.store.events.of(job.id) if event.text.startswith("succeeded: ")]) == 1
    assert place.store.leases.held() == {}


def nothing_left(place: Place) -> bool:
    return not chaos_run._marked(place.token)


def test_a_killed_worker_s_job_is_ended_by_another_and_no_process_is_left(place: Place) -> None:
    job = place.hand_in("home")
    first = place.worker("home")
    place.stuck("home")
    until(lambda: len(chaos_run._marked(place.token)) == 2)  # the child and what it started
    first.kill()
    first.wait()
    until(lambda: nothing_left(place))
    assert place.store.jobs.get(job.id).status is JobStatus.RUNNING
    (place.folder / "home" / "go").touch()
    second = place.worker("home")
    until(lambda: ended(place, job))
    assert_ended_once(place, job)
    second.terminate()
    assert second.wait(30) == 0
    runs = [run.status for run in place.store.stages.runs(job.id) if run.stage is StageName.EPISODE]
    assert runs == ["failed", "finished"]


def test_a_worker_that_slept_through_its_lease_changes_nothing(place: Place) -> None:
    """As on two machines: the folders of the two are not the same."""
    job = place.hand_in("one", "two")
    asleep = place.worker("one")
    place.stuck("one")
    asleep.send_signal(signal.SIGSTOP)
    (place.folder / "two" / "go").touch()
    place.worker("two")
    until(lambda: ended(place, job))
    runs = place.store.stages.runs(job.id)
    events = place.store.events.of(job.id)
    asleep.send_signal(signal.SIGCONT)
    # it ends its own child once it knows
    until(lambda: len(chaos_run._marked(place.token)) == 0)
    assert asleep.poll() is None
    asleep.terminate()
    assert asleep.wait(30) == 0
    assert place.store.stages.runs(job.id) == runs
    assert place.store.events.of(job.id) == events
    assert_ended_once(place, job)


def test_a_suspended_worker_does_not_keep_the_folder(place: Place) -> None:
    job = place.hand_in("home")
    asleep = place.worker("home")
    place.stuck("home")
    asleep.send_signal(signal.SIGSTOP)
    (place.folder / "home" / "go").touch()
    place.worker("home")
    until(lambda: ended(place, job))
    assert asleep.wait(30) == -signal.SIGKILL
    assert_ended_once(place, job)


def test_sigterm_hands_the_job_back(place: Place) -> None:
    job = place.hand_in("home")
    worker = place.worker("home")
    place.stuck("home")
    worker.terminate()
    assert worker.wait(30) == 0
    assert place.store.jobs.get(job.id).status is JobStatus.QUEUED
    assert place.store.jobs.attempts(job.id) == 0
    assert place.store.leases.held() == place.store.devices.held() == {}
    assert place.store.stages.runs(job.id)[-1].reason.code == "interrupted"  # type: ignore[union-attr]
    until(lambda: nothing_left(place))
    (place.folder / "home" / "go").touch()
    place.worker("home")
    until(lambda: ended(place, job))
    assert_ended_once(place, job)


def test_a_worker_leaves_the_jobs_of_the_foreground_alone(place: Place) -> None:
    foreground, job = place.hand_in("home", queue=Queue.FOREGROUND), place.hand_in("home")
    (place.folder / "home" / "go").touch()
    place.worker("home")
    until(lambda: ended(place, job))
    assert place.store.jobs.get(foreground.id).status is JobStatus.QUEUED


def test_the_command_runs_a_job_and_logs_its_stages(home: Path, tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{home}/llm4llm.sqlite3", home / "blobs")
    script = tmp_path / "script.py"
    script.write_text("print(1)\n")
    request = Request(script=str(script), script_sha256="", working_directory=str(tmp_path), python=sys.executable)
    job = submit(request, store, SystemClock(), random.Random())
    done = subprocess.run([*COMMAND, "worker", "--once", "--json"], env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["stage"] for line in lines if line.get("job") == job.id and "stage" in line} == {"capture"}
    assert store.jobs.get(job.id).status is JobStatus.SUCCEEDED
    assert store.leases.held() == {}
    store.close()


def test_a_fleet_replaces_its_dead_and_goes_as_one(home: Path) -> None:
    with Fleet(2, Rounds(0.2), environment=environment()) as fleet:
        until(lambda: len(fleet.pids()) == 2)
        dead = fleet.pids()[0]
        os.kill(dead, signal.SIGKILL)
        until(lambda: len(fleet.pids()) == 2 and dead not in fleet.pids())
        pids = fleet.pids()
    assert fleet.pids() == ()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_workers_go_when_whoever_started_them_is_killed(home: Path) -> None:
    program = (
        "import time; from llm4llm.worker.fleet import Fleet; from llm4llm.worker.loop import Rounds\n"
        "fleet = Fleet(2, Rounds(0.2)); fleet.start()\n"
        "while len(fleet.pids()) < 2: time.sleep(0.05)\n"
        "print(*fleet.pids(), flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_short_storm(place: Place) -> None:
    """The same as `make chaos`, smaller."""
    home = place.folder / "storm"
    home.mkdir()
    size = chaos_run.Size(jobs=6, workers=2, kills=6, limit_s=120.0)
    figures = chaos_run.run("short", place.url, home, size, random.Random(7))
    assert figures.violations == []
    assert figures.kills == 6
