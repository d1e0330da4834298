"""The wheel that users install: complete, without stray top-level names, usable outside the checkout."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as an index would get it; the build runs without isolation, so nothing is downloaded."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, "--sdist", str(ROOT)], check=True, capture_output=True, timeout=300)
    (sdist,) = out.glob("*.tar.gz")
    unpacked = out / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (source,) = unpacked.iterdir()
    subprocess.run([*command, "--wheel", str(source)], check=True, capture_output=True, timeout=300)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that has this wheel and borrows our dependencies, but not our checkout."""
    place = tmp_path_factory.mktemp("env")
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, timeout=300)
    purelib = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True
    ).stdout.strip()
    ours = [entry for entry in sys.path if entry.endswith("site-packages")]
    # a .pth line is appended after the environment's own packages, and .pth files in the borrowed folders are not followed
    Path(purelib, "borrowed.pth").write_text("\n".join(ours) + "\n")
    return python


def test_only_one_top_level_name(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"llm4llm"}


def test_data_folders_are_inside(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for place in ("agents", "profiles", "patches", "migrations", "tests/judge_corpus"):
        files = [path for path in (ROOT / place).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        folder = Path(place).name
        here = {str(Path(folder) / path.relative_to(ROOT / place)) for path in files}
        assert here
        assert here == {name.removeprefix("llm4llm/_assets/") for name in names if name.startswith(f"llm4llm/_assets/{folder}/")}


def test_installed_program_finds_its_assets(installed: Path, tmp_path: Path) -> None:
    code = "import llm4llm, llm4llm.assets as a; print(llm4llm.__file__); print(a.assets_dir()); print(len(a.seeds()))"
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LLM4LLM_HOME": str(tmp_path / "home")}
    done = subprocess.run([installed, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    package, assets, seeds = done.stdout.split()
    assert str(ROOT) not in package
    assert assets.endswith("llm4llm/_assets")
    assert int(seeds) > 0


def test_installed_program_optimizes_a_script(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).eval()\n"
        "with torch.no_grad():\n"
        "    print(model(torch.randn(2, 8)).argmax(-1).tolist())\n"
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LLM4LLM_HOME": str(tmp_path / "home")}
    command = [installed.with_name("llm4llm"), "optimize", str(script), "--out", str(tmp_path / "out"), "--budget", "2m"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "report.json").exists()
