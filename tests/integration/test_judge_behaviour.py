"""What the judge sees of a candidate that does more than compute. The static gate is lifted here: these are the checks behind it."""

from pathlib import Path

import pytest
from judging import corpus_task, judged

from llm4llm.harness import contract

RIGHT = """
def forward(module, state, x):
    return x / (x.abs().mean(-1, keepdim=True) + module.eps) * module.weight
"""
BESIDES = {
    "thread": "import threading\ndef accepts(module, state, x):\n    threading.Thread(target=int).start()\n    return True\n",
    "patched_library": "import time\ntime.perf_counter = lambda: 0.0\n",
    "network": "import socket\ndef prepare(module):\n    socket.socket()\n",
    "process": "import subprocess\ndef prepare(module):\n    subprocess.run(['true'])\n",
    "file": "def prepare(module):\n    open('/tmp/left-behind', 'w').close()\n",
    "introspection": "import gc\ndef prepare(module):\n    gc.get_objects()\n",
    "process_state": "import os\ndef prepare(module):\n    os.environ['SPEED'] = 'high'\n",
    "module_changed": "def prepare(module):\n    module.calls = 0\n",
    "import": "import sys\nsys.exit(0)\n",
}
DEATHS = {
    "os._exit(0)": ("failed", "runtime"),
    "os.kill(os.getpid(), 9)": ("failed", "runtime"),
    "sys.exit(0)": ("rejected", "exit"),
    "ctypes.string_at(0)": ("failed", "runtime"),
    "torch.empty(1 << 50)": ("failed", "oom"),
}


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_task(tmp_path_factory.mktemp("task"), "MeanNorm")


@pytest.fixture(autouse=True)
def _no_static_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "check_source", lambda text: [])


@pytest.mark.parametrize("rule", BESIDES)
def test_deeds_besides_computing_are_rejected(rule: str, task: Path, tmp_path: Path) -> None:
    (tmp_path / "candidate.py").write_text(BESIDES[rule] + RIGHT)
    verdict = judged(task, tmp_path / "candidate.py")
    assert (verdict["outcome"], verdict["kind"]) == ("rejected", rule), verdict["reason"]


@pytest.mark.parametrize("deed", DEATHS)
def test_death_is_a_verdict(deed: str, task: Path, tmp_path: Path) -> None:
    (tmp_path / "candidate.py").write_text(f"import ctypes, os, sys, torch\ndef forward(module, state, x):\n    {deed}\n    return x\n")
    verdict = judged(task, tmp_path / "candidate.py")
    assert (verdict["outcome"], verdict["kind"]) == DEATHS[deed], verdict["reason"]
    assert "captured call" in verdict["reason"]


def test_death_on_import_is_a_rejection(task: Path, tmp_path: Path) -> None:
    (tmp_path / "candidate.py").write_text("import os\nos._exit(0)\n" + RIGHT)
    verdict = judged(task, tmp_path / "candidate.py")
    assert (verdict["outcome"], verdict["kind"]) == ("rejected", "import"), verdict["reason"]


def test_what_a_candidate_prints_is_not_heard(task: Path, tmp_path: Path) -> None:
    text = 'import os\nprint(\'{"outcome": "passed"}\')\nos.write(1, b\'{"nonce": "", "message": {"outcome": "passed"}}\\n\')\n'
    (tmp_path / "candidate.py").write_text(text + "def forward(module, state, x):\n    print('x' * 1000)\n    return x * 0\n")
    verdict = judged(task, tmp_path / "candidate.py")
    assert (verdict["outcome"], verdict["kind"]) == ("incorrect", "numerical")


def test_a_candidate_that_senses_poison_is_caught_without_it(task: Path, tmp_path: Path) -> None:
    text = """
import torch
def forward(module, state, x):
    out = torch.zeros_like(x) if torch.are_deterministic_algorithms_enabled() else torch.empty_like(x)
    y = x / (x.abs().mean(-1, keepdim=True) + module.eps) * module.weight
    if torch.are_deterministic_algorithms_enabled():
        return y
    out[..., :40] = y[..., :40]
    return out
"""
    (tmp_path / "candidate.py").write_text(text)
    assert judged(task, tmp_path / "candidate.py")["outcome"] == "incorrect"


def test_a_clock_that_runs_slow_is_noticed_by_the_judge_s_own(task: Path, tmp_path: Path) -> None:
    text = """
def prepare(module):
    import llm4llm.harness.timing as timing
    real = timing._CLOCK_NS
    timing._CLOCK_NS = lambda: real() // 16
"""
    (tmp_path / "candidate.py").write_text(text + RIGHT)
    verdict = judged(task, tmp_path / "candidate.py", measure=True, seconds=1.0)
    assert (verdict["outcome"], verdict["kind"]) == ("rejected", "clock"), verdict["reason"]


def test_a_baseline_that_is_reported_too_slow_is_noticed_where_no_candidate_is(task: Path, tmp_path: Path) -> None:
    text = """
def prepare(module):
    import llm4llm.harness.timing as timing
    real = timing.paired
    def slow(*given):
        baseline, patched = real(*given)
        return [[30.0 * one for one in row] for row in baseline], patched
    timing.paired = slow
"""
    (tmp_path / "candidate.py").write_text(text + RIGHT)
    verdict = judged(task, tmp_path / "candidate.py", measure=True, seconds=1.0)
    assert (verdict["outcome"], verdict["kind"]) == ("rejected", "clock"), verdict["reason"]
    assert "without the candidate" in verdict["reason"]
