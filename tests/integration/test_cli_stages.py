"""doctor, profile, tasks and judge on a real machine and a real script."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from llm4llm.cli.main import main; main()"]
pytestmark = pytest.mark.timeout(290)

SCRIPT = """
import sys
import torch
from torch import nn

class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 32))

    def forward(self, x):
        rows = []
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = 0.5 * state + x[:, step] * self.gain
            rows.append(state)
        return torch.stack(rows, dim=1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.smooth = nn.ModuleList(Smooth() for _ in range(3))
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        for layer in self.smooth:
            x = x + layer(x)
        return self.head(x)

torch.manual_seed(0)
net = Net().eval()
with torch.inference_mode():
    for length in (160, 240):
        print(length, tuple(net(torch.randn(2, length, 32)).shape), sys.argv[1:])
"""
SAME = '''"""The same, without a list of rows."""

import torch


def forward(module, state, x):
    out = torch.empty_like(x)
    carried = torch.zeros_like(x[:, 0])
    scaled = x * module.gain
    for step in range(x.shape[1]):
        carried = 0.5 * carried + scaled[:, step]
        out[:, step] = carried
    return out
'''


def call(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def test_doctor_tells_one_line_each(tmp_path: Path) -> None:
    done = call(tmp_path, "doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert set(findings) == {"python", "torch", "triton", "transformers", "gpu", "cross-compile", "sandbox", "database", "disk", "seeds"}
    assert findings["torch"]["state"] == findings["database"]["state"] == "ok"
    assert all(finding["fix"] for finding in findings.values() if finding["state"] != "ok")
    assert done.returncode == 0
    plain = call(tmp_path, "doctor", "--python", "/bin/true")
    assert plain.returncode == 1
    assert any(line.startswith("missing  python") and "fix:" in line for line in plain.stdout.splitlines())


def test_profile_prints_a_table_or_json(folder: Path) -> None:
    done = call(folder, "profile", "script.py", "--out", "out", "--json", "--", "--word", "x")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    spots = {spot["module_class"]: spot for spot in facts["hotspots"]}
    assert spots["Smooth"]["calls"] == 6
    assert 0.2 < spots["Smooth"]["share"] <= 1.0
    assert spots["Smooth"]["ceiling"] == pytest.approx(1 / (1 - spots["Smooth"]["share"]), rel=1e-3)
    assert facts["end_to_end"]["median_ms"] > 0
    assert (folder / "out" / "script.stdout").read_text() == "160 (2, 160, 8) ['--word', 'x']\n240 (2, 240, 8) ['--word', 'x']\n"
    table = call(folder, "profile", "script.py").stdout.splitlines()
    assert table[0].split()[:2] == ["module", "family"]
    assert any(line.startswith("Smooth") and "forward" in line and "smooth.0 +2" in line for line in table)


def test_a_task_can_be_judged_again_and_again(folder: Path) -> None:
    done = call(folder, "tasks", "script.py", "--out", "tasks")
    assert done.returncode == 0, done.stderr
    tasks = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(set(task) >= {"id", "module_path", "module_class", "phase", "share"} for task in tasks)
    (task,) = [task for task in tasks if task["module_class"] == "Smooth"]
    assert task["module_path"] == "smooth.0"
    place = folder / "tasks" / task["id"]
    assert json.loads((place / "task.json").read_text())["target"] == "cpu"
    (folder / "same.py").write_text(SAME)
    (folder / "wrong.py").write_text(SAME.replace("0.5 * carried", "0.51 * carried"))
    (folder / "empty.py").write_text("")
    judged = call(folder, "judge", str(place), "same.py", "--json")
    verdict = json.loads(judged.stdout)
    assert (verdict["outcome"], judged.returncode) == ("passed", 0), judged.stdout
    assert verdict["language"] == "torch"
    assert verdict["ci95"][0] <= verdict["speedup"] <= verdict["ci95"][1]
    assert verdict["proven_domain"]
    judged = call(folder, "judge", str(place), "wrong.py", "--json")
    verdict = json.loads(judged.stdout)
    assert (verdict["outcome"], verdict["kind"], judged.returncode) == ("incorrect", "numerical", 1)
    judged = call(folder, "judge", str(place), "empty.py")
    assert judged.returncode == 1
    assert judged.stdout.startswith("rejected (")


def test_what_can_not_be_judged_is_unusable(folder: Path) -> None:
    (folder / "task").mkdir()
    (folder / "same.py").write_text(SAME)
    for arguments in (("task", "same.py"), ("none", "same.py")):
        done = call(folder, "judge", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
    (folder / "task" / "task.json").write_text('{"target": "cpu"}')
    (folder / "latin.py").write_bytes(b"# \xe9\n")
    for name in ("none.py", "latin.py"):
        done = call(folder, "judge", "task", name)
        assert (done.returncode, done.stdout) == (2, "")
        assert name in done.stderr
