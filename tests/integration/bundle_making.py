"""Bundles for the tiny stack of bundle_scripts, proven in this process."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import torch

from llm4llm.harness.machine import environment
from llm4llm.kit import sha256_bytes
from llm4llm.runtime.domain import merge, observe
from llm4llm.runtime.signature import configuration_hash, family_signature, root_fingerprint
from llm4llm.schema.acceptance import Acceptance, Patch
from llm4llm.schema.capture import Root
from llm4llm.schema.environment import Environment
from llm4llm.schema.reason import Reason
from llm4llm.stages.bundle.contents import Contents
from llm4llm.stages.bundle.pack import archived, pack

SCRIPTS = Path(__file__).parent / "bundle_scripts"
REPOSITORY = Path(__file__).parents[2]
FAST = '''"""One multiplication."""


def prepare(module):
    return module.weight.detach()


def forward(module, state, x):
    return x * state
'''
sys.path.insert(0, str(SCRIPTS))

import tiny_stack  # noqa: E402


def contents(source: str = FAST, **changes: Any) -> Contents:
    model = tiny_stack.Stack().eval()
    with torch.no_grad():
        calls = [torch.arange(16.0).repeat(1, length, 1) for length in (3, 5)]
        domain = merge([observe(model.layers[0], (x,), {}) for x in calls], effects=False)
    digest = sha256_bytes(source.encode())
    patch = Patch(
        candidate="cand_fast",
        candidate_sha256=digest,
        task="task_1",
        root="r0",
        module_class="Scale",
        phase="forward",
        family=family_signature(model.layers[0]),
        paths=("layers.0", "layers.1"),
        config={},
        proven_domain=domain,
    )
    root = Root(
        id="r0",
        module_class="Stack",
        fingerprint=root_fingerprint(model),
        config_sha256=configuration_hash(model),
        parameters=32,
        parameter_bytes=128,
        devices=("cpu",),
        dtypes=("float32",),
        training=False,
    )
    reason = Reason(code="accepted", text="for a test")
    acceptance = Acceptance(trials=(), kept=(patch,), together=None, fresh_process=None, decision="accepted", reason=reason)
    facts = {**environment(), "target": "cpu", "gpu": None, "gpu_capability": None, **changes}
    return Contents(acceptance, Environment.model_validate(facts), (root,), {digest: source.encode()})


def write_bundle(folder: Path, source: str = FAST, **changes: Any) -> Path:
    path = folder / "bundle.zip"
    path.write_bytes(pack(contents(source, **changes)))
    return path


def with_manifest(path: Path, change: Any) -> Path:
    """The same bundle with `change(manifest)` made."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    files["manifest.json"] = json.dumps(manifest).encode()
    path.write_bytes(archived(files))
    return path


def python(arguments: list[str], folder: Path, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A child interpreter with one thread and a home of its own."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables = {**base, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    return subprocess.run(
        [sys.executable, *arguments], input=stdin, capture_output=True, text=True, cwd=folder, env=variables, timeout=120, check=False
    )
