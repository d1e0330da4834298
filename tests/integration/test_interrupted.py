"""Ctrl-C, SIGTERM and kill -9 while a job runs: nothing is left running, and the stored job can be continued."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from llm4llm.cli.main import main; main()"]
pytestmark = pytest.mark.timeout(280)

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
model = nn.Linear(4, 4).eval()
with torch.inference_mode():
    print(model(torch.ones(1, 4)).shape)
Path("started").write_text(str(os.getpid()))
while not Path("finish").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "script.py").write_text(SCRIPT)
    yield tmp_path
    (tmp_path / "finish").write_text("")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=240)


def running(folder: Path) -> "subprocess.Popen[str]":
    """A job whose script has begun and waits."""
    command = [*COMMAND, "optimize", "script.py", "--out", "out"]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (folder / "started").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 15
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_job_leaves_nothing_running_and_goes_on(folder: Path, number: signal.Signals) -> None:
    process = running(folder)
    host = int((folder / "started").read_text())
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert gone(host)
    assert out == ""
    assert "Traceback" not in err
    (stored,) = [json.loads(line) for line in call(folder, "jobs", "--json").stdout.splitlines()]
    if number is signal.SIGKILL:
        assert stored["status"] == "running"
    else:
        assert process.returncode == 130
        assert f"llm4llm optimize --resume {stored['id']} --out" in err
        assert stored["status"] == "queued"
    assert not (folder / "out" / "bundle.zip").exists()
    (folder / "finish").write_text("")
    done = call(folder, "optimize", "--resume", stored["id"], "--out", "out")
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "out" / "report.json").read_text())
    assert report["job"]["id"] == stored["id"]
    assert report["job"]["status"] == "succeeded"


def test_a_job_is_run_by_one_process_at_a_time(folder: Path) -> None:
    process = running(folder)
    (stored,) = [json.loads(line) for line in call(folder, "jobs", "--json").stdout.splitlines()]
    done = call(folder, "optimize", "--resume", stored["id"])
    assert done.returncode == 2
    assert "another process is running it" in done.stderr
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
