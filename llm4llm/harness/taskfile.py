"""A task folder on disk: one hotspot made reproducible in a process that has never seen the script.

    task.json          facts, ambient state, sys.path, sha256 of every other file
    module.pkl         the module with its own weights, without hooks and without a forward of its own on the instance
    calls.pt           [{"args", "kwargs", "kept", "phase", "rng", "instance"}], inputs only
    reference.pt       [{"result", "args", "kwargs", "kept"}], the same calls after the original ran; a candidate never gets this file
    definitions.json   what has to be rebuilt of the script's own modules, see harness/definitions.py
    definitions/       their source
    source.py.txt      source of the module's class, for readers

Calls of one folder share tensors that are equal in all of them, so take a values.snapshot of a call before running it.
"""

import hashlib
import json
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from llm4llm.harness import definitions, pickling, rebuilding

FACTS_FILE, MODULE_FILE, CALLS_FILE, REFERENCE_FILE, SOURCE_FILE = "task.json", "module.pkl", "calls.pt", "reference.pt", "source.py.txt"
FORMAT = 1
CALL_KEYS = frozenset({"args", "kwargs", "kept", "phase", "rng", "instance"})
REFERENCE_KEYS = frozenset({"result", "args", "kwargs", "kept"})


class BadTask(Exception):
    """A folder that can't be used as a task; the message says what is wrong with it and what to do."""


@dataclass(frozen=True)
class LoadedTask:
    """A task's module and inputs, ready to run in this process."""

    facts: dict[str, Any]
    module: nn.Module
    calls: list[dict[str, Any]]
    ambient: dict[str, Any]
    sys_path: list[str]


def write_task(  # noqa: PLR0913
    folder: Path,
    task_facts: dict[str, Any],
    module: nn.Module,
    calls: list[dict[str, Any]],
    references: list[dict[str, Any]],
    ambient_json: dict[str, Any],
    sys_path: list[str],
) -> dict[str, Any]:
    """Write a complete task folder and return the content of task.json.

    `task_facts` are the fields of schema.Task. Raises pickling.NotCarried with the name of what can't be carried into another
    process; the folder is then removed again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return _write(folder, task_facts, (module, calls, references), {"ambient": ambient_json, "sys_path": list(sys_path)})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(folder: Path, task_facts: dict[str, Any], content: tuple[Any, ...], around: dict[str, Any]) -> dict[str, Any]:
    module, calls, references = content
    carried = definitions.Carried()
    pickling.save(module, folder / MODULE_FILE, carried)
    pickling.save(calls, folder / CALLS_FILE, carried, module)
    pickling.save(references, folder / REFERENCE_FILE, carried, module)
    definitions.write(folder, carried)
    (folder / SOURCE_FILE).write_text(definitions.class_source(type(module)), encoding="utf-8")
    hashes = {path: file_sha256(folder / path) for path in _files(folder) if path != FACTS_FILE}
    whole = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    facts = {
        **task_facts,
        "folder": str(folder),
        "sha256": whole,
        **around,
        "format": FORMAT,
        "defined_in": type(module).__module__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "file_sha256": hashes,
    }
    (folder / FACTS_FILE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")
    return facts


def read_facts(folder: Path) -> dict[str, Any]:
    """The content of task.json after every file was checked against its hash. Raises BadTask."""
    if not folder.is_dir():
        raise BadTask(f"{folder} is no folder; give a task folder as `llm4llm tasks` writes it")
    try:
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadTask(f"{folder} has no {FACTS_FILE}, so it is no task folder; extract it with `llm4llm tasks`") from error
    except (OSError, ValueError) as error:
        raise BadTask(f"{folder / FACTS_FILE} can't be read ({error}); extract the task again") from error
    if not isinstance(facts, dict) or not isinstance(facts.get("file_sha256"), dict):
        raise BadTask(f"{folder / FACTS_FILE} lists no files; extract the task again")
    if facts.get("format") != FORMAT:
        raise BadTask(f"{folder} has format {facts.get('format')!r} and this version reads {FORMAT}; extract the task again")
    return facts


def check_files(folder: Path, facts: dict[str, Any], without: frozenset[str] = frozenset()) -> None:
    """Raise BadTask for the first file that is missing or differs from its hash in task.json."""
    required = {MODULE_FILE, CALLS_FILE, REFERENCE_FILE, definitions.INDEX_FILE} - without
    for name in sorted(required - facts["file_sha256"].keys()):
        raise BadTask(f"{folder / FACTS_FILE} does not list {name}; extract the task again")
    for name, expected in sorted(facts["file_sha256"].items()):
        if name in without:
            continue
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BadTask(f"{folder / FACTS_FILE} names {name!r}, which lies outside the folder; extract the task again")
        if not path.is_file():
            raise BadTask(f"{path} is missing; extract the task again")
        if file_sha256(path) != expected:
            raise BadTask(f"{path} is not what was written there (truncated or changed); extract the task again")


def read_task(folder: Path, device: str | None = None) -> LoadedTask:
    """Rebuild the module and its calls. reference.pt may be absent, as in a copy for a candidate. Raises BadTask.

    `device` moves tensors there, for reading a GPU's task on a machine without one.
    """
    folder = Path(folder)
    facts = read_facts(folder)
    absent = frozenset() if (folder / REFERENCE_FILE).exists() else frozenset({REFERENCE_FILE})
    check_files(folder, facts, absent)
    _extend_path(facts["sys_path"])
    rebuilt = _rebuilt(folder)
    module = _load(folder / MODULE_FILE, rebuilt, None, device)
    if not isinstance(module, nn.Module):
        raise BadTask(f"{folder / MODULE_FILE} holds a {type(module).__name__} and no module; extract the task again")
    calls = _load(folder / CALLS_FILE, rebuilt, module, device)
    _check_records(folder / CALLS_FILE, calls, CALL_KEYS)
    return LoadedTask(facts, module, calls, facts["ambient"], facts["sys_path"])


def read_references(folder: Path, module: nn.Module | None = None, device: str | None = None) -> list[dict[str, Any]]:
    """What the original returned and left behind, in the order of the calls. Raises BadTask.

    Parts of the task's module in them are parts of `module`, the one that `read_task` gave, or of a copy of it if that is left out.
    """
    folder = Path(folder)
    facts = read_facts(folder)
    check_files(folder, facts)
    _extend_path(facts["sys_path"])
    rebuilt = _rebuilt(folder)
    module = module if module is not None else _load(folder / MODULE_FILE, rebuilt, None, device)
    references = _load(folder / REFERENCE_FILE, rebuilt, module, device)
    _check_records(folder / REFERENCE_FILE, references, REFERENCE_KEYS)
    return list(references)


def copy_without_references(folder: Path, destination: Path) -> None:
    """Copy what a candidate may see: everything but reference.pt. `destination` must not exist yet."""
    folder, destination = Path(folder), Path(destination)
    shutil.copytree(folder, destination, ignore=shutil.ignore_patterns(REFERENCE_FILE))
    facts = json.loads((destination / FACTS_FILE).read_text(encoding="utf-8"))
    facts["folder"] = None  # where the references lie is nothing a candidate has to know
    (destination / FACTS_FILE).write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _extend_path(entries: list[str]) -> None:
    """Entries that the script's process searched and this one does not, behind those that this one has."""
    sys.path.extend(entry for entry in entries if entry and entry not in sys.path and os.path.exists(entry))


def _rebuilt(folder: Path) -> rebuilding.Rebuilt:
    try:
        return rebuilding.rebuild(folder)
    except rebuilding.CannotRebuild as error:
        raise BadTask(str(error)) from error


def _load(path: Path, rebuilt: rebuilding.Rebuilt, module: nn.Module | None, device: str | None) -> Any:
    try:
        return pickling.load(path, rebuilt, module, device)
    except Exception as error:
        last = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadTask(
            f"{path} can't be loaded in this environment ({type(error).__name__}: {last}); "
            "use the Python environment in which the task was extracted, or extract it again"
        ) from error


def _check_records(path: Path, records: Any, keys: frozenset[str]) -> None:
    if not isinstance(records, list) or not records or not all(isinstance(one, dict) and keys <= one.keys() for one in records):
        raise BadTask(f"{path} is no list of records with {', '.join(sorted(keys))}; extract the task again")
