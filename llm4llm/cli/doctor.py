"""What this machine can do: one line per fact, each with the fix for what is missing."""

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from llm4llm.assets import seeds, target_for
from llm4llm.cli import say
from llm4llm.cli.request import interpreter
from llm4llm.errors import Llm4llmError
from llm4llm.sandbox import ChildSpec, Failed, Limits, Sandbox, scrubbed
from llm4llm.settings import Settings, load_settings
from llm4llm.store import open_store

_PROBE_TIMEOUT_S = 180.0
_LOW_DISK_BYTES = 10 * 2**30
_OLDEST_PYTHON = (3, 11)
_OLDEST_TORCH = (2, 5)


@dataclass(frozen=True)
class Finding:
    """One line: `ok`, `limited` (works with less) or `missing` (nothing works without it), and what to do."""

    name: str
    state: Literal["ok", "limited", "missing"]
    text: str
    fix: str = ""


def doctor(python: str | None, as_json: bool) -> int:
    """Print the findings; 1 if something is missing that every job needs."""
    settings = load_settings()
    findings = [*_interpreter(settings, interpreter(python)), _sandbox(settings), _database(settings), _disk(settings.home), _assets()]
    if as_json:
        say.result(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            fix = f"; fix: {finding.fix}" if finding.fix else ""
            say.result(f"{finding.state:<8} {finding.name:<14} {finding.text}{fix}")
    return say.EXIT_FAILED if any(finding.state == "missing" for finding in findings) else say.EXIT_OK


def _interpreter(settings: Settings, python: str) -> list[Finding]:
    started = time.monotonic()
    spec = ChildSpec("llm4llm.harness.probe", python, Path.cwd(), environment=scrubbed(os.environ), limits=Limits(wall_s=_PROBE_TIMEOUT_S))
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        with Sandbox(settings.home) as sandbox, sandbox.start(spec) as child:
            answer = child.request("probe", {}, _PROBE_TIMEOUT_S)
    except (Llm4llmError, OSError) as error:
        return [Finding("python", "missing", f"{python} can't be started: {error}", "point --python at a Python 3.11+ interpreter")]
    if isinstance(answer, Failed):
        return [
            Finding(
                "python", "missing", f"{python} can't run our code: {answer.reason} {answer.stderr_tail[-300:].strip()}", "use Python 3.11+"
            )
        ]
    facts, seconds = answer.result, time.monotonic() - started
    return [
        _versioned("python", facts["python"], f"{facts['executable']}, a child starts in {seconds:.1f} s", _OLDEST_PYTHON),
        _torch(facts),
        _package(facts, "triton", "candidates in plain torch only", "pip install triton (Linux)"),
        _package(facts, "transformers", "only scripts that don't need it", "pip install transformers"),
        _gpu(facts),
        _cross_compile(facts),
    ]


def _torch(facts: dict[str, Any]) -> Finding:
    if facts["torch"] is None:
        why = facts["errors"].get("torch", "not installed")
        return Finding("torch", "missing", why, "pip install torch, or point --python at the environment that runs your script")
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else "CPU build"
    return _versioned("torch", facts["torch"], f"{build}, {facts.get('threads')} threads", _OLDEST_TORCH)


def _versioned(name: str, version: str, text: str, oldest: tuple[int, int]) -> Finding:
    found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if found < oldest:
        needed = ".".join(map(str, oldest))
        return Finding(name, "missing", f"{version} ({text})", f"{needed} or newer is needed: point --python at another environment")
    return Finding(name, "ok", f"{version} ({text})")


def _package(facts: dict[str, Any], name: str, without: str, fix: str) -> Finding:
    if facts[name] is None:
        return Finding(name, "limited", f"{facts['errors'].get(name, 'not installed')}: {without}", fix)
    return Finding(name, "ok", str(facts[name]))


def _gpu(facts: dict[str, Any]) -> Finding:
    if not facts["gpus"]:
        visible = shutil.which("nvidia-smi") is not None
        fix = "install a CUDA build of torch" if visible else "run on a machine with an NVIDIA GPU"
        return Finding("gpu", "limited", "none: jobs run on the CPU, speed of Triton candidates is not measured", fix)
    first = facts["gpus"][0]
    profile = target_for(first["name"], first["capability"])
    text = f"{len(facts['gpus'])} x {first['name']}, {first['memory_bytes'] / 2**30:.0f} GiB, target {profile.name}"
    return Finding("gpu", "ok", text)


def _cross_compile(facts: dict[str, Any]) -> Finding:
    if facts["cross_compile"]:
        return Finding("cross-compile", "ok", "kernels can be compiled for GPUs that are not here")
    why = facts["errors"].get("cross_compile", "no code came out").splitlines()[0]
    return Finding("cross-compile", "limited", f"kernels can't be compiled for other GPUs ({why[:160]})", "install triton 3.6 or newer")


def _sandbox(settings: Settings) -> Finding:
    with Sandbox(settings.home) as sandbox:
        facts = sandbox.facts()
    if facts.level == "full":
        return Finding("sandbox", "ok", f"full: limits, candidates without network, and with files of their own alone ({facts.reason})")
    missing = [name for name, there in (("the network", facts.prefix), ("a view of all files", facts.landlock)) if not there]
    return Finding("sandbox", "limited", f"{facts.level}: candidates have limits but keep {' and '.join(missing)}", facts.reason)


def _database(settings: Settings) -> Finding:
    shown = settings.database.split("@")[-1] if "@" in settings.database else settings.database
    try:
        store = open_store(settings.database, settings.blobs)
    except Llm4llmError as error:
        return Finding("database", "missing", f"{shown}: {error.what}", error.fix or "correct LLM4LLM_DATABASE_URL")
    try:
        return Finding("database", "ok", f"{shown}, {len(store.jobs.latest(1000))} recent jobs")
    finally:
        store.close()


def _disk(home: Path) -> Finding:
    place = home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    text = f"{free / 2**30:.1f} GiB free below {home}"
    if not os.access(place, os.W_OK):
        return Finding("disk", "missing", f"{place} can't be written", "set LLM4LLM_HOME to a folder that can")
    if free < _LOW_DISK_BYTES:
        return Finding("disk", "limited", text, "free some space: task folders hold weights; or set LLM4LLM_HOME to another disk")
    return Finding("disk", "ok", text)


def _assets() -> Finding:
    try:
        found = seeds()
    except Llm4llmError as error:
        return Finding("seeds", "missing", error.what, error.fix)
    return Finding("seeds", "ok" if found else "limited", f"{len(found)} shipped: {', '.join(seed.name for seed in found)}")
