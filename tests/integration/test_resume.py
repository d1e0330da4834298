"""Whole jobs with real children on a small model whose slow module has a fast seed; killed in each stage, and continued."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm4llm.kit import SystemClock, sha256_bytes
from llm4llm.sandbox import scrubbed
from llm4llm.schema.job import Budget, Job, JobStatus, Request, StageName
from llm4llm.schema.run import StageRun
from llm4llm.service.jobs import submit
from llm4llm.service.report import job_report
from llm4llm.settings import load_settings
from llm4llm.store import Store, open_store

ROOT = Path(__file__).parents[2]
SCRIPT = '''
import torch
from torch import nn


class RowByRow(nn.Module):
    """Scales and shifts one row after the other: right, and slow."""

    def __init__(self, width):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.stack([(row * self.scale + self.shift).tanh() for row in x])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rows, self.last = nn.Linear(16, 64), RowByRow(64), nn.Linear(64, 8)

    def forward(self, x):
        return self.last(self.rows(self.first(x)))


torch.manual_seed(0)
torch.set_num_threads(1)
net = Net().eval()
with torch.no_grad():
    for rows in (600, 700):
        print(rows, [round(value, 4) for value in net(torch.randn(rows, 16))[-1].tolist()])
'''
SEED = '''"""All rows at once instead of one after the other."""


def forward(module, state, x):
    return (x * module.scale + module.shift).tanh()


def matches(module):
    return type(module).__name__ == "RowByRow"
'''
# seconds after a stage has begun at which its worker is killed: where children are at work, they are in the middle of it
KILLS = {"capture": 1.0, "profile": 0.5, "task": 0.0, "episode": 2.0, "verdict": 2.0, "acceptance": 2.0, "bundle": 0.0}


@pytest.fixture
def store(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store in a home of its own, with one seed."""
    assets = tmp_path / "assets"
    seed = assets / "patches" / "all_rows" / "candidate.py"
    seed.parent.mkdir(parents=True)
    seed.write_text(SEED)
    for name in ("agents", "profiles", "migrations"):
        (assets / name).symlink_to(ROOT / name)
    monkeypatch.setenv("LLM4LLM_ASSETS_DIR", str(assets))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = load_settings()
    store = open_store(settings.database, settings.blobs)
    yield store
    store.close()


def hand_in(store: Store, folder: Path, budget_s: float = 600.0) -> Job:
    script = folder / "rows.py"
    script.write_text(SCRIPT)
    request = Request(
        script=str(script),
        script_sha256="",
        working_directory=str(folder),
        python=sys.executable,
        environment=scrubbed(os.environ),
        budget=Budget(seconds=budget_s),
    )
    job = submit(request, store, SystemClock(), random.Random())
    assert job.status is JobStatus.QUEUED, job.reason
    return job


def work(job: Job, *kill: str) -> subprocess.CompletedProcess[str]:
    """Run a worker to its end in a process of its own."""
    program = [sys.executable, str(Path(__file__).with_name("killed_worker.py")), job.id, *kill]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(program, capture_output=True, text=True, timeout=600, env=environment, check=False)


def children_of(home: Path) -> list[str]:
    """Command lines of living processes that the job's workers started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(home).encode() in environment + command and b"llm4llm.harness" in command:
                found.append(command.replace(b"\0", b" ").decode())
    return found


def assert_nothing_left(home: Path) -> None:
    deadline = time.monotonic() + 10
    while (left := children_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def decision(store: Store, job: Job) -> dict[str, Any]:
    """What a job came to, without its measurements."""
    report = job_report(store, job.id)
    return {
        "status": report["job"]["status"],
        "reason": report["job"]["reason"]["code"],
        "hotspots": sorted((spot["module_class"], spot["phase"], spot["status"]) for spot in report["hotspots"] if spot["share"] > 0.3),
        "accepted": [(patch["module_class"], patch["phase"]) for patch in report["accepted"]],
        "candidates": [(found["id"], found["verdict"]["outcome"]) for found in report["candidates"]],
    }


def finished(runs: tuple[StageRun, ...]) -> dict[StageName, int]:
    """The attempt that finished, by stage; none finished twice."""
    stages = [run.stage for run in runs if run.status == "finished"]
    assert len(stages) == len(set(stages))
    return {run.stage: run.attempt for run in runs if run.status == "finished"}


@pytest.mark.timeout(1800)
def test_a_job_killed_in_each_stage_comes_to_the_same_decision(store: Store, home: Path, tmp_path: Path) -> None:
    plain = hand_in(store, tmp_path)
    done = work(plain)
    assert done.returncode == 0, done.stderr
    expected = decision(store, plain)
    assert expected["reason"] == "accepted", done.stdout
    assert expected["accepted"] == [("RowByRow", "forward")]
    report = job_report(store, plain.id)
    assert report["accepted"][0]["hits"] > 0
    assert report["end_to_end"]["fresh_process"]["decision"] == "keep"
    archive = store.blobs.get(report["bundle"]["sha256"])
    assert sha256_bytes(archive) == report["bundle"]["sha256"]
    assert_nothing_left(home)

    job = hand_in(store, tmp_path)
    before: dict[StageName, int] = {}
    for stage, seconds in KILLS.items():
        killed = work(job, stage, str(seconds))
        assert killed.returncode == -9, f"{stage}: {killed.stdout}{killed.stderr}"
        assert store.jobs.get(job.id).status is JobStatus.RUNNING
        assert_nothing_left(home)
        now = finished(store.stages.runs(job.id))
        assert {name: now[name] for name in before} == before
        before = now
    done = work(job)
    assert done.returncode == 0, done.stderr
    now = finished(store.stages.runs(job.id))
    assert list(now) == list(StageName)
    assert {name: now[name] for name in before} == before
    assert decision(store, job) == expected
    assert sorted(entry.name for entry in (home / "jobs" / job.id).iterdir()) == ["script.stderr", "script.stdout"]
