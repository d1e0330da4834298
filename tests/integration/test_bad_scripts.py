"""Scripts that can't be optimized: one line that says what to do, the script's own end, a stored job, and nothing left running."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(280)

MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 8)).eval()
with torch.inference_mode():
    print(tuple(model(torch.randn(3, 24)).shape), flush=True)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    return [sys.executable, "-c", "from llm4llm.cli.main import main; main()"]


def call(command: list[str], *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run([*command, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=270)


def ours(done: subprocess.CompletedProcess[str]) -> str:
    """Our one line on stderr."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("llm4llm: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def stored(command: list[str], cwd: Path) -> dict[str, object]:
    jobs = call(command, "jobs", "--json", cwd=cwd).stdout.splitlines()
    assert len(jobs) == 1
    found: dict[str, object] = json.loads(jobs[0])
    return found


@pytest.mark.parametrize(
    ("content", "said", "code"),
    [
        (None, "there is no file", "script_not_found"),
        ("x = (1,\n", "line 1", "script_not_python"),
        ("# nothing\n", "holds no code", "script_empty"),
    ],
)
def test_what_is_no_script_is_told_before_anything_runs(
    command: list[str], tmp_path: Path, content: str | None, said: str, code: str
) -> None:
    if content is not None:
        (tmp_path / "script.py").write_text(content)
    done = call(command, "optimize", "script.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in ours(done)
    assert stored(command, tmp_path)["reason"]["code"] == code  # type: ignore[index]
    assert not (tmp_path / "llm4llm-out").exists()
    assert json.loads(call(command, "optimize", "script.py", "--json", cwd=tmp_path).stdout)["job"]["reason"]["code"] == code


@pytest.mark.parametrize(
    ("script", "said", "code"),
    [
        (MODEL + "raise ValueError('no more')\n", "ValueError: no more", "script_failed"),
        ("raise RuntimeError('early')\n", "RuntimeError: early", "script_failed"),
        (MODEL + "import sys; sys.exit(3)\n", "exit code 3", "script_failed"),
        (
            "import argparse; p = argparse.ArgumentParser(); p.add_argument('--text', required=True); p.parse_args()\n",
            "--",
            "script_wants_arguments",
        ),
        (MODEL + "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n", "signal 11", "script_died"),
    ],
)
def test_a_script_that_fails_fails_its_job_with_its_own_exit_code(
    command: list[str], tmp_path: Path, script: str, said: str, code: str
) -> None:
    (tmp_path / "script.py").write_text(script)
    done = call(command, "optimize", "script.py", "--out", "out", "--budget", "60s", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert said in ours(done)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["job"]["status"] == "failed"
    assert report["job"]["reason"]["code"] == code
    assert not (tmp_path / "out" / "bundle.zip").exists()
    assert (tmp_path / "out" / "script.stderr").exists()
    if "nn.Linear" in script and code == "script_failed":
        assert (tmp_path / "out" / "script.stdout").read_text() == "(3, 8)\n"
        assert report["hotspots"]
        assert all(spot["status"] == "skipped" and spot["reason"] for spot in report["hotspots"])


def test_a_script_that_never_ends(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        MODEL + "import time\nwhile True:\n    with torch.inference_mode():\n        model(torch.randn(3, 24))\n    time.sleep(0.02)\n"
    )
    done = call(command, "optimize", "script.py", "--out", "out", "--budget", "40s", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "time budget used up" in ours(done)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["job"]["reason"]["code"] == "time_budget"
    assert report["hotspots"]


def test_a_script_without_a_model_is_no_failure(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch\nprint(torch.ones(2).sum().item())\n")
    done = call(command, "optimize", "script.py", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "no model was called" in done.stdout
    assert (tmp_path / "out" / "script.stdout").read_text() == "2.0\n"
    assert json.loads((tmp_path / "out" / "report.json").read_text())["hotspots"] == []


def test_a_key_of_ours_never_reaches_the_script(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os\nprint(os.environ.get('OPENAI_API_KEY'), os.environ.get('MODE'), 'PYTHONSAFEPATH' in os.environ)\n"
    )
    done = call(command, "optimize", "script.py", "--out", "out", "--env", "MODE=x", cwd=tmp_path, OPENAI_API_KEY="made-up-value")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "script.stdout").read_text() == "None x False\n"
    for file in (tmp_path / "out").iterdir():
        assert "made-up-value" not in file.read_text()
