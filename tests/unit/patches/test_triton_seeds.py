"""The Triton seeds, each suite in a child process: interpreted on the CPU, and compiled for the GPUs they are meant for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}  # bytes a block may have: A100, H100


def child(command: list[str], tmp_path: Path, **environment: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    settings = {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(tmp_path / "triton"), **environment}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=inherited | settings, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(("suite", "least"), [("norms_and_mlp", 20), ("mamba", 20), ("attention", 11)])
def test_interpreted(suite: str, least: int, tmp_path: Path) -> None:
    report = child(["-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / f"interpreted_{suite}.py")], tmp_path, TRITON_INTERPRET="1")
    passed = re.search(r"(\d+) passed", report)
    assert passed is not None
    assert int(passed.group(1)) >= least
    assert "skipped" not in report


@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability: int, tmp_path: Path) -> None:
    kernels = [json.loads(line) for line in child([str(HERE / "compile_kernels.py"), str(capability)], tmp_path).splitlines()]
    assert all(kernel["size"] > 0 for kernel in kernels)
    assert all(kernel["shared"] <= SHARED_MEMORY[capability] for kernel in kernels)
    sources = {path.parent.name: path.read_text() for path in (ROOT / "patches").glob("*/candidate.py")}
    launched = {name: set(re.findall(r"^def (_\w+)\((?=[^)]*tl\.constexpr)", text, re.M)) for name, text in sources.items()}
    compiled = {(kernel["seed"], kernel["kernel"]) for kernel in kernels}
    assert compiled == {(seed, kernel) for seed, names in launched.items() for kernel in names}


def test_the_device_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "seeds.json"
    child(["benchmarks/seeds_device.py", "--smoke", "--only", "layer_norm", "--out", str(out)], tmp_path, TRITON_INTERPRET="1")
    report = json.loads(out.read_text())
    assert report["rows"]
    assert all(row["right"] and row["seed"] == "layer_norm" for row in report["rows"])


def test_every_seed_has_notes_and_a_hypothesis() -> None:
    folders = [path.parent for path in (ROOT / "patches").glob("*/candidate.py")]
    assert len(folders) >= 9
    for folder in folders:
        assert (folder / "candidate.py").read_text().startswith('"""')
        assert (folder / "NOTES.md").read_text().startswith(f"# {folder.name}\n")
