"""judge selftest through the command line: what it prints, and that its exit code can be 1."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COMMAND = [sys.executable, "-c", "from llm4llm.cli.main import main; main()", "judge", "selftest"]
pytestmark = pytest.mark.timeout(290)
WORKLOAD = """
import argparse
import torch
from torch import nn

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 24))

    def forward(self, x):
        return x * self.gain + 1.0

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Scale()
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.scale(x))

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="float32")
dtype = getattr(torch, parser.parse_args().dtype)
torch.manual_seed(0)
net = Net().eval().to(dtype)
with torch.inference_mode():
    for batch in (1, 2, 5):
        print(tuple(net(torch.randn(batch, 24).to(dtype)).shape))
"""
RIGHT = "def forward(module, state, x):\n    return x * module.gain + 1.0\n"
SHIFTED = "def forward(module, state, x):\n    return x * module.gain + 1.1\n"
HALVES = "def forward(module, state, x):\n    return x * module.gain if x.shape[0] == 5 else x * module.gain + 1.0\n"
LABELS = {
    "one": {"target": "Scale", "label": "honest", "kind": "plain"},
    "two": {"target": "Scale", "label": "wrong", "kind": "numerical", "expected": [["incorrect", "numerical"]]},
    "three": {"target": "Scale", "label": "wrong", "kind": "inputs", "expected": [["incorrect", "numerical"]], "dtypes": ["bfloat16"]},
    "four": {"target": "Scale", "label": "wrong", "kind": "numerical", "device": "cuda"},
}
FILES = {"one": RIGHT, "two": SHIFTED, "three": HALVES, "four": SHIFTED}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "candidates").mkdir()
    (folder / "workload.py").write_text(WORKLOAD)
    (folder / "labels.json").write_text(json.dumps(LABELS))
    for name, text in FILES.items():
        (folder / "candidates" / f"{name}.py").write_text(text)
    return folder


def said(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LLM4LLM_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=280, check=False)


def test_score_in_both_dtypes(corpus: Path, tmp_path: Path) -> None:
    done = said(tmp_path / "home", "--corpus", str(corpus), "--dtype", "all", "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    found = {(one["candidate"], one["dtype"]): (one["outcome"], one["fate"]) for one in report["heard"]}
    assert found == {
        ("one", "float32"): ("passed", "as_labelled"),
        ("one", "bfloat16"): ("passed", "as_labelled"),
        ("two", "float32"): ("incorrect", "as_labelled"),
        ("two", "bfloat16"): ("incorrect", "as_labelled"),
        ("three", "bfloat16"): ("incorrect", "as_labelled"),
    }
    assert report["clean"] is True
    assert list(report["left_out"]) == ["four"]
    assert not (tmp_path / "home" / "llm4llm.sqlite3").exists(), "the user's own database is left alone"


def test_a_miss_and_a_false_rejection_are_told_and_end_with_1(corpus: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "corpus"
    (wrong / "candidates").mkdir(parents=True)
    (wrong / "workload.py").write_text(WORKLOAD)
    labels = {"one": {**LABELS["one"], "label": "wrong"}, "two": {**LABELS["two"], "label": "honest"}}
    (wrong / "labels.json").write_text(json.dumps(labels))
    for name in labels:
        (wrong / "candidates" / f"{name}.py").write_text(FILES[name])
    done = said(tmp_path / "home", "--corpus", str(wrong))
    assert done.returncode == 1, done.stderr
    assert "MISSED: one (Scale, float32): passed" in done.stdout
    assert "FALSELY REJECTED: two (Scale, float32): incorrect (numerical)" in done.stdout
    assert "the judge FAILS its own test: 2 verdicts" in done.stdout


def test_what_can_not_be_used_ends_with_2(corpus: Path, tmp_path: Path) -> None:
    for arguments, said_so in (
        (("--corpus", str(tmp_path)), "no labels.json"),
        (("--corpus", str(corpus), "--kind", "nonsense"), "kinds of this corpus: inputs, numerical, plain"),
        (("--corpus", str(corpus), "--dtype", "int8"), "float32, bfloat16, all"),
    ):
        done = said(tmp_path / "home", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert said_so in done.stderr


def test_help_knows_it(tmp_path: Path) -> None:
    done = said(tmp_path / "home", "--help")
    assert done.returncode == 0
    assert "judge selftest" in done.stdout
