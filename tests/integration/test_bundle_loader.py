import json
import os
import py_compile
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from bundle_making import FAST, SCRIPTS, python, with_manifest, write_bundle

PROLOGUE = f"""
import sys
sys.modules["llm4llm"] = None  # an import of it would raise
sys.path[:0] = [sys.argv[1], {str(SCRIPTS)!r}]
import json
import torch
from tiny_stack import Stack
import llm4llm_bundle
assert not [name for name in sys.modules if name.startswith("llm4llm.") or "_bundle." in name]
"""
USE = """
model = Stack().eval()
before = [list(vars(part).items()) for part in model.modules()]
x = torch.arange(16.0).repeat(1, 4, 1)
with torch.no_grad():
    plain = model(x)
    llm4llm_bundle.apply(model)
    llm4llm_bundle.apply(model)
    assert torch.equal(model(x), plain)
    model(x.repeat(2, 1, 1))
    status = llm4llm_bundle.status(model)
    llm4llm_bundle.remove(model)
    assert torch.equal(model(x), plain)
assert [list(vars(part).items()) for part in model.modules()] == before
assert not llm4llm_bundle.status(model)["applied"]
print(json.dumps([status, llm4llm_bundle.explain()[:14]]))
"""
REFUSED = """
for place, layers, width in json.loads(sys.argv[2]):
    model = Stack(layers=layers, width=width).eval()
    before = [list(vars(part).items()) for part in model.modules()]
    try:
        llm4llm_bundle.Bundle(place).apply(model)
    except llm4llm_bundle.Refused as refused:
        print(refused.code, "|", refused.text)
    assert [list(vars(part).items()) for part in model.modules()] == before
"""


def refusals(whole: Path, cases: list[tuple[Path, int, int]]) -> list[str]:
    """What one process says to each (bundle, layers, width)."""
    places = json.dumps([(str(place), layers, width) for place, layers, width in cases])
    done = python(["-I", "-c", PROLOGUE + REFUSED, str(whole), places], whole.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_a_bundle_needs_torch_and_nothing_of_ours(tmp_path: Path, form: str) -> None:
    place, marker = write_bundle(tmp_path), tmp_path / "ran"
    if form == "folder":
        zipfile.ZipFile(place).extractall(tmp_path / "unpacked")
        place = tmp_path / "unpacked"
        for file in (next((place / "patches").iterdir()), place / "llm4llm_bundle" / "runtime" / "apply.py"):
            leave_compilation(file, ran(marker))
    done = python(["-I", "-c", PROLOGUE + USE, str(place)], tmp_path)
    assert done.returncode == 0, done.stderr
    status, text = json.loads(done.stdout)
    assert [(site["path"], site["hits"], site["fallback_reasons"]) for site in status["sites"]] == [
        ("layers.0", 1, {"shape": 1}),
        ("layers.1", 1, {"shape": 1}),
    ]
    assert text == "# Patch bundle"
    assert not marker.exists()
    if form == "archive":
        (folder,) = (tmp_path / "cache" / "llm4llm_bundle").iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_does_not_fit_or_was_altered_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    def version(manifest: dict[str, Any]) -> None:
        manifest["environment"]["torch"] = "1.13.1"

    def triton(manifest: dict[str, Any]) -> None:
        manifest["environment"]["triton"], manifest["patches"][0]["needs_triton"] = "1.0.0", True

    def device(manifest: dict[str, Any]) -> None:
        manifest["patches"][0]["devices"] = ["cuda"]

    def family(manifest: dict[str, Any]) -> None:
        manifest["patches"][0]["family"] = "0" * 64

    whole = write_bundle(tmp_path)
    expected = [
        "other_model | this Stack differs in configuration, dtype or shapes",
        "other_model | this Stack differs in configuration, dtype or shapes",
        "torch_version | torch here is",
        "triton_",
        "device | layers.0 is on cpu, patch cand_fast is for cuda",
        "other_module | layers.0 (Scale) is not the module",
        "bundle_altered | ",
        "bundle_altered | ",
    ]
    cases = [(whole, 3, 16), (whole, 2, 8)]
    for number, change in enumerate((version, triton, device, family)):
        folder = tmp_path / str(number)
        folder.mkdir()
        cases.append((with_manifest(write_bundle(folder), change), 2, 16))
    marker = tmp_path / "ran"
    for name in ("llm4llm_bundle/runtime/apply.py", "patches"):
        folder = tmp_path / f"altered_{name.partition('/')[0]}"
        zipfile.ZipFile(whole).extractall(folder)
        target = folder / name if name.endswith(".py") else next((folder / name).iterdir())
        target.write_bytes(ran(marker) + target.read_bytes())
        cases.append((folder, 2, 16))
    found = refusals(whole, cases)
    assert [line[: len(start)] for line, start in zip(found, expected, strict=True)] == expected
    assert not marker.exists()


def ran(marker: Path) -> bytes:
    """Code that leaves a mark where it is executed."""
    return f"open({str(marker)!r}, 'w').close()\n".encode()


def leave_compilation(file: Path, source: bytes) -> None:
    """A cached compilation of `source` that Python would take for that of the file."""
    original, times = file.read_bytes(), file.stat()
    file.write_bytes(source.ljust(len(original), b"#"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    py_compile.compile(str(file))
    file.write_bytes(original)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_patch_that_fails_on_the_way_falls_back(tmp_path: Path) -> None:
    place = write_bundle(tmp_path, FAST.replace("return x * state", "raise MemoryError('none left')"))
    done = python(["-I", "-c", PROLOGUE + USE, str(place)], tmp_path)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)[0]
    assert status["sites"][0]["fallback_reasons"] == {"exception": 1, "disabled": 1}
    assert "none left" in status["sites"][1]["disabled"]
