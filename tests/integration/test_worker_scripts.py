"""Scripts that end badly, run by a real worker: a stored reason, the script's own output, and no process left."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm4llm.errors import JobNotResumable
from llm4llm.kit import SystemClock
from llm4llm.sandbox import scrubbed
from llm4llm.schema.event import Event
from llm4llm.schema.job import Budget, Job, JobStatus, Request
from llm4llm.service.jobs import submit
from llm4llm.service.report import job_report
from llm4llm.settings import load_settings
from llm4llm.store import Store, open_store
from llm4llm.worker.host import ScriptChanged
from llm4llm.worker.local import run_job

ROOT = Path(__file__).parents[2]
MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
def call():
    with torch.no_grad():
        return net(torch.randn(2, 8))
call()
print("called", flush=True)
"""


@pytest.fixture
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = load_settings()
    store = open_store(settings.database, settings.blobs)
    yield store
    store.close()


def hand_in(store: Store, folder: Path, text: str, budget_s: float = 300.0, **changes: object) -> Job:
    script = folder / "script.py"
    script.write_text(text)
    facts = {"script": str(script), "script_sha256": "", "working_directory": str(folder), "python": sys.executable}
    request = Request.model_validate({**facts, "environment": scrubbed(os.environ), "budget": Budget(seconds=budget_s), **changes})
    return submit(request, store, SystemClock(), random.Random())


def ended(job: Job) -> Job:
    return run_job(job.id, load_settings(), lambda event: None)


def reason(job: Job) -> tuple[str, str]:
    assert job.reason is not None
    return job.status.value, job.reason.code


def test_a_script_that_raises_after_its_model_ran(store: Store, home: Path, tmp_path: Path) -> None:
    job = ended(hand_in(store, tmp_path, MODEL + "raise ValueError('batch 3')\n"))
    assert reason(job) == ("failed", "script_failed")
    assert "exit code 1: ValueError: batch 3" in job.reason.text  # type: ignore[union-attr]
    report = job_report(store, job.id)
    assert report["job"]["script_exit_code"] == 1
    assert {spot["status"] for spot in report["hotspots"]} == {"skipped"}
    assert len(report["hotspots"]) >= 2
    output = home / "jobs" / job.id
    assert (output / "script.stdout").read_text() == "called\n"
    assert (output / "script.stderr").read_text().rstrip().endswith("ValueError: batch 3")
    assert "llm4llm" not in (output / "script.stderr").read_text()


@pytest.mark.parametrize(
    ("text", "expected", "part"),
    [
        ("import sys\nsys.exit(3)\n", ("failed", "script_failed"), "exit code 3"),
        ("import os\nos._exit(7)\n", ("failed", "script_died"), "exit code 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", ("failed", "script_died"), "signal 11"),
        ("print(1)\n", ("succeeded", "no_model"), "no model was called"),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--text', required=True)\np.parse_args()\n",
         ("failed", "script_wants_arguments"), "pass them after --"),
    ],
)  # fmt: skip
def test_scripts_that_end_before_a_model_ran(store: Store, tmp_path: Path, text: str, expected: tuple[str, str], part: str) -> None:
    job = ended(hand_in(store, tmp_path, text))
    assert reason(job) == expected
    assert part in job.reason.text  # type: ignore[union-attr]
    assert job_report(store, job.id)["hotspots"] == []


def test_a_script_that_never_ends(store: Store, tmp_path: Path) -> None:
    job = ended(hand_in(store, tmp_path, MODEL + "import time\nwhile True:\n    call()\n    time.sleep(0.01)\n", budget_s=60))
    assert reason(job) == ("failed", "time_budget")
    assert job_report(store, job.id)["hotspots"] != []


def test_arguments_input_and_variables_reach_the_script_and_nothing_else_does(
    store: Store, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MADE_UP_API_KEY", "sk-made-up")
    (tmp_path / "in.txt").write_text("typed\n")
    text = "import os, sys\nprint(sys.argv[1:], input(), os.environ.get('MADE_UP_API_KEY'), os.environ['GIVEN'], os.getcwd())\n"
    environment = {**scrubbed(os.environ), "GIVEN": "yes"}
    job = hand_in(store, tmp_path, text, arguments=["--n", "2"], stdin=str(tmp_path / "in.txt"), environment=environment)
    assert reason(ended(job)) == ("succeeded", "no_model")
    printed = (home / "jobs" / job.id / "script.stdout").read_text()
    assert printed == f"['--n', '2'] typed None yes {tmp_path}\n"


def test_a_script_that_was_changed_is_not_run(store: Store, tmp_path: Path) -> None:
    job = hand_in(store, tmp_path, "print(1)\n")
    (tmp_path / "script.py").write_text("print(2)\n")
    assert reason(ended(job)) == ("failed", ScriptChanged.code)


def test_a_job_is_run_by_one_worker(store: Store, tmp_path: Path) -> None:
    job = hand_in(store, tmp_path, "print(1)\n")

    def meddle(event: Event) -> None:
        if event.kind == "stage_started":
            with pytest.raises(JobNotResumable):
                ended(job)

    assert run_job(job.id, load_settings(), meddle).status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_worker_in_good_order(store: Store, home: Path, tmp_path: Path, number: int) -> None:
    job = hand_in(store, tmp_path, MODEL + "import time\ntime.sleep(600)\n")
    program = [sys.executable, str(Path(__file__).with_name("killed_worker.py")), job.id]
    worker = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    printed = home / "jobs" / job.id / "script.stdout"
    try:
        deadline = time.monotonic() + 120
        while not (printed.exists() and printed.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        worker.send_signal(number)
        assert worker.wait(30) != 0
    finally:
        worker.kill()
        worker.wait()
    assert store.jobs.get(job.id).status is JobStatus.QUEUED
    (run,) = store.stages.runs(job.id)
    assert run.reason is not None
    assert run.reason.code == "interrupted"
    assert not any(str(home).encode() in command for command in commands())


def commands() -> list[bytes]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
    return found
