import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from llm4llm.cli.main import run
from llm4llm.kit import sha256_bytes

CANDIDATE = b'"""Multiplies at once."""\n\n\ndef forward(module, state, x):\n    return x * 2\n'


def manifest(files: dict[str, bytes]) -> dict[str, Any]:
    timing = {"baseline_ms": [2.0, 2.0], "patched_ms": [1.0, 1.0], "method": "ABBA", "ci95": [1.9, 2.1], "speedup": 2.0}
    patch = {
        "name": "cand_1", "file": "patches/twice.py", "sha256": sha256_bytes(CANDIDATE), "hypothesis": "Multiplies\nat once.",
        "root_fingerprint": "f" * 64, "module_class": "Twice", "phase": "forward", "family": "a",
        "paths": ["0", "2"], "config": {"block": 4},
        "needs_triton": False, "devices": ["cpu"], "proven_domain": {}, "guards": ["x is a float32 tensor"], "evidence": {},
    }  # fmt: skip
    model = {
        "module_class": "Net",
        "fingerprint": "f" * 64,
        "config_sha256": None,
        "parameters": 1234,
        "devices": ["cpu"],
        "dtypes": ["float32"],
    }
    return {
        "schema_version": 1, "made_by": {"name": "llm4llm", "version": "0"}, "origin": {},
        "target": "cpu", "models": [model], "patches": [patch],
        "environment": {"torch": "2.13.0", "triton": None, "cpu": "A Processor"},
        "evidence": {"in_model": {"timing": timing}, "fresh_process": None}, "runtime_modules": [],
        "files": {name: sha256_bytes(content) for name, content in files.items()},
    }  # fmt: skip


@pytest.fixture
def files() -> dict[str, bytes]:
    found = {"patches/twice.py": CANDIDATE, "llm4llm_bundle/__init__.py": b"", "README.md": b"what it does"}
    return {**found, "manifest.json": json.dumps(manifest(found)).encode()}


def packed(place: Path, files: dict[str, bytes]) -> str:
    with zipfile.ZipFile(place / "b.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(place / "b.zip")


def test_a_whole_bundle_is_verified_and_shown(tmp_path: Path, files: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    bundle = packed(tmp_path, files)
    assert run(["bundle", "verify", bundle]) == 0
    assert "whole, 3 files, 1 patch" in capsys.readouterr().out
    assert run(["bundle", "inspect", bundle]) == 0
    shown = capsys.readouterr().out
    assert "1 patch, proven on A Processor, torch 2.13.0" in shown
    assert "model: Net, 1,234 parameters, float32 on cpu" in shown
    assert 'patch: cand_1 on Twice (forward), 2 sites, {"block": 4}' in shown
    assert "Multiplies at once." in shown
    assert "only if x is a float32 tensor" in shown
    assert "measured in model: 2.00x end to end, 95 % interval 1.90 to 2.10, 2 pairs" in shown
    assert run(["bundle", "inspect", "--json", bundle]) == 0
    assert json.loads(capsys.readouterr().out)["patches"][0]["name"] == "cand_1"


def test_a_changed_bundle_is_told(tmp_path: Path, files: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    bundle = packed(tmp_path, {**files, "README.md": b"something else"})
    assert run(["bundle", "verify", bundle]) == 2
    assert "README.md was altered" in capsys.readouterr().err
    assert run(["bundle", "verify", "--json", bundle]) == 2
    assert json.loads(capsys.readouterr().out)["whole"] is False
    assert run(["bundle", "inspect", bundle]) == 2
    assert "README.md was altered" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"no zip at all"])
def test_what_is_no_bundle_is_one_line(tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "b.zip"
    if content is not None:
        file.write_bytes(content)
    for verb in ("verify", "inspect"):
        assert run(["bundle", verb, str(file)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
