"""Many jobs, a few workers, and SIGKILL at random times: every job must end once, and nothing may be left.

    python tests/chaos/chaos_run.py [JOBS] [WORKERS] [KILLS]

Runs on SQLite and on a PostgreSQL server of its own; prints the figures, and exits 1 if anything was violated.
"""

import contextlib
import json
import multiprocessing
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

import chaos_worker  # noqa: E402

from llm4llm.kit import SystemClock  # noqa: E402
from llm4llm.pipeline.steps import STEPS  # noqa: E402
from llm4llm.schema.job import Budget, JobStatus, Request, StageName  # noqa: E402
from llm4llm.service.jobs import submit  # noqa: E402
from llm4llm.store import Store, open_store  # noqa: E402

_ENDED = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


@dataclass(frozen=True)
class Size:
    jobs: int = 60
    workers: int = 3
    kills: int = 100
    pause_s: float = 0.25  # between two kills, on average
    limit_s: float = 150.0
    pace: chaos_worker.Pace = field(default_factory=chaos_worker.Pace)


@dataclass
class Figures:
    """What happened; `violations` is empty if it is what must happen."""

    database: str
    jobs: int = 0
    kills: int = 0
    drains: int = 0
    stages_interrupted: int = 0
    taken_again: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


class Herd:
    """Workers forked from one process that has everything imported: a start takes milliseconds."""

    def __init__(self, url: str, home: Path, token: str, pace: chaos_worker.Pace) -> None:
        # the server of forks imports from what its environment names, not from what we have added to sys.path
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1])])
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["chaos_worker"])
        self._arguments = (url, str(home), token, pace)
        self._living: list[Any] = []

    def fill(self, count: int) -> None:
        """Start workers until there are so many."""
        self._living = [worker for worker in self._living if worker.is_alive()]
        while len(self._living) < count:
            worker = self._context.Process(target=chaos_worker.main, args=self._arguments)
            worker.start()
            self._living.append(worker)

    def signal_one(self, store: Store, rng: random.Random, number: int) -> bool:
        """Hit a worker, mostly one that has a job; False if it had gone already."""
        pids = [worker.pid for worker in self._living]
        busy = [pid for holder in store.leases.held().values() if (pid := int(holder.split(".")[1])) in pids]
        try:
            os.kill(rng.choice(busy if busy and rng.random() < 0.8 else pids), number)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> bool:
        """Ask all to go; True if every one did, with exit code 0."""
        for worker in self._living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        for worker in self._living:
            worker.join(20)
        codes = {worker.exitcode for worker in self._living}
        for worker in self._living:
            worker.kill()
        # the last ones that were killed may still be on the list
        return codes <= {0, -signal.SIGKILL}


def run(name: str, url: str, home: Path, size: Size, rng: random.Random) -> Figures:
    """One database's turn."""
    figures = Figures(name)
    token = secrets.token_hex(8)
    store = open_store(url, home / "blobs")
    herd = Herd(url, home, token, size.pace)
    started = time.monotonic()
    try:
        _hand_in(store, home, size.jobs)
        while figures.kills < size.kills or not _all_ended(store):
            if time.monotonic() - started > size.limit_s:
                figures.violations.append(f"not over after {size.limit_s:.0f} s")
                break
            herd.fill(size.workers)
            time.sleep(size.pause_s * 2 * rng.random())
            if figures.kills < size.kills:
                drain = rng.random() < 0.1
                if herd.signal_one(store, rng, signal.SIGTERM if drain else signal.SIGKILL):
                    figures.drains += drain
                    figures.kills += not drain
            if figures.kills < size.kills and _all_ended(store):
                # the kills are to hit work, not idle workers
                _hand_in(store, home, size.workers)
        time.sleep(1.0)  # whoever was started last listens to signals by then
        if not herd.stop():
            figures.violations.append("a worker that was asked to go did not go in good order")
        figures.seconds = round(time.monotonic() - started, 1)
        _look(store, figures)
        _look_for_processes(token, figures)
    finally:
        herd.stop()
        store.close()
    return figures


def _hand_in(store: Store, home: Path, count: int) -> None:
    script = home / "script.py"
    script.write_text("print(1)\n")
    for name in ("good", "wrong"):
        file = home / "seeds" / name / "candidate.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'"""{name}"""\n')
    request = Request(
        script=str(script), script_sha256="", working_directory=str(home), python=sys.executable, budget=Budget(seconds=600.0)
    )
    for _ in range(count):
        submit(request, store, SystemClock(), random.Random())


def _all_ended(store: Store) -> bool:
    return all(job.status in _ENDED for job in store.jobs.latest(10_000))


def _look(store: Store, figures: Figures) -> None:
    """Everything that must hold of what is stored."""
    wrong = figures.violations
    jobs = store.jobs.latest(10_000)
    figures.jobs = len(jobs)
    for job in jobs:
        runs = store.stages.runs(job.id)
        finished = Counter(run.stage for run in runs if run.status == "finished")
        if job.status is not JobStatus.SUCCEEDED or finished != Counter(StageName):
            wrong.append(f"{job.id} is {job.status.value} ({job.reason}) with {dict(finished)}")
        ends = [event for event in store.events.of(job.id) if event.text.startswith(tuple(f"{status.value}: " for status in _ENDED))]
        if len(ends) != 1:
            wrong.append(f"{job.id} has ended {len(ends)} times")
        if any(run.status == "running" for run in runs):
            wrong.append(f"{job.id} has a stage that never ended")
        figures.stages_interrupted += len(runs) - len(StageName)
        figures.taken_again += len(runs) > len(StageName)
    if store.leases.held() or store.devices.held():
        wrong.append(f"leases are left: {store.leases.held()} {store.devices.held()}")
    wrong.extend(_timed_at_once(store))


def _timed_at_once(store: Store) -> list[str]:
    """Stages that were on the one device at the same time and whose results were stored all the same."""
    timing = {step.stage for step in STEPS if step.times}
    spans = sorted(
        (run.started_at, str(run.ended_at), f"{run.job} {run.stage.value}")
        for job in store.jobs.latest(10_000)
        for run in store.stages.runs(job.id)
        if run.status == "finished" and run.stage in timing
    )
    return [f"timed at once: {name} and {after}" for (_, ended, name), (begun, _, after) in pairwise(spans) if begun < ended]


def _look_for_processes(token: str, figures: Figures) -> None:
    deadline = time.monotonic() + 10
    while (left := _marked(token)) and time.monotonic() < deadline:
        time.sleep(0.1)
    figures.violations.extend(f"process {pid} was left: {command}" for pid, command in left.items())


def _marked(token: str) -> dict[int, str]:
    """Living processes that carry a run's token: workers' children, and theirs."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if token.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def main() -> int:
    import postgresql_server

    sizes = [int(argument) for argument in sys.argv[1:]]
    size = Size(*sizes)
    seed = random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    print(f"seed {seed}: {size.jobs} jobs, {size.workers} workers, at least {size.kills} kills", flush=True)
    all_figures = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        home = Path(folder) / "sqlite"
        home.mkdir()
        all_figures.append(run("sqlite", f"sqlite:///{home}/jobs.db", home, size, rng))
        print(json.dumps(all_figures[-1].__dict__), flush=True)
        home = Path(folder) / "postgresql"
        home.mkdir()
        with postgresql_server.started() as server, postgresql_server.database(server) as url:
            all_figures.append(run("postgresql", url, home, size, rng))
        print(json.dumps(all_figures[-1].__dict__), flush=True)
    return 1 if any(figures.violations for figures in all_figures) else 0


if __name__ == "__main__":
    sys.exit(main())
