"""Read a bundle without running any of it."""

import json
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from llm4llm.errors import BadBundle
from llm4llm.kit import sha256_bytes
from llm4llm.stages.bundle.manifest import Manifest
from llm4llm.stages.bundle.pack import PACKAGE

MAX_FILES, MAX_FILE_BYTES, MAX_TOTAL_BYTES = 2000, 16 << 20, 64 << 20  # as the loader has them


def inspect(path: Path) -> dict[str, Any]:
    """The manifest. Raises BadBundle if there is none that can be read."""
    files, problems = _read(path)
    if "manifest.json" not in files:
        raise BadBundle(str(path), problems[0] if problems else "it has no manifest.json")
    try:
        manifest = json.loads(files["manifest.json"])
    except ValueError as error:
        raise BadBundle(str(path), "its manifest.json is no JSON") from error
    if not isinstance(manifest, dict):
        raise BadBundle(str(path), "its manifest.json is no object")
    return manifest


def verify(path: Path) -> list[str]:
    """What is wrong with a bundle, one sentence each; empty if its files are those of its manifest and it may be trusted as far as that."""
    files, problems = _read(path)
    if "manifest.json" not in files:
        return problems or ["there is no manifest.json; this is not a bundle"]
    try:
        manifest = Manifest.model_validate_json(files["manifest.json"])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "manifest.json"
        return [*problems, f"the manifest does not follow its schema: {place}: {first['msg']}"]
    return problems + _file_problems(files, manifest.files) + _needed_problems(manifest)


def _file_problems(files: dict[str, bytes], listed: dict[str, str]) -> list[str]:
    problems = [f"{name} is listed in the manifest and missing" for name in listed if name not in files]
    problems += [f"{name} is not listed in the manifest" for name in files if name not in listed and name != "manifest.json"]
    altered = [name for name, wanted in listed.items() if name in files and sha256_bytes(files[name]) != wanted]
    return problems + [f"{name} was altered: its sha256 is not the one in the manifest" for name in altered]


def _needed_problems(manifest: Manifest) -> list[str]:
    needed = [f"{PACKAGE}/__init__.py", "README.md"]
    needed += [f"{PACKAGE}/runtime/{name}.py" for name in manifest.runtime_modules]
    problems = [f"{name} is needed and not listed in the manifest" for name in needed if name not in manifest.files]
    fingerprints = {model.fingerprint for model in manifest.models}
    for patch in manifest.patches:
        if manifest.files.get(patch.file) != patch.sha256:
            problems.append(f"patch {patch.name} names {patch.file} with another sha256 than the list of files")
        if patch.root_fingerprint not in fingerprints:
            problems.append(f"patch {patch.name} is for a model that the manifest does not name")
    return problems


def _read(path: Path) -> tuple[dict[str, bytes], list[str]]:
    """Files that are safe to read, by path inside, and a sentence for every entry that is not."""
    if path.is_dir():
        return _read_folder(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_archive(archive)
    except FileNotFoundError:
        return {}, ["there is no such file"]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        return {}, [f"it can't be read as a zip archive: {error}"]


def _read_archive(archive: zipfile.ZipFile) -> tuple[dict[str, bytes], list[str]]:
    files: dict[str, bytes] = {}
    problems: list[str] = []
    total = 0
    for entry in archive.infolist():
        if entry.is_dir():
            continue
        total += entry.file_size
        why = _entry_problem(entry)
        if why is None and entry.filename in files:
            why = f"{entry.filename} is there twice"
        if why is None and (total > MAX_TOTAL_BYTES or len(files) >= MAX_FILES):
            return files, [*problems, "more or larger files than a bundle may have"]
        if why is None:
            files[entry.filename] = archive.read(entry)
        else:
            problems.append(why)
    return files, problems


def _entry_problem(entry: zipfile.ZipInfo) -> str | None:
    path = PurePosixPath(entry.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.filename or str(path) != entry.filename:
        return f"{entry.filename!r} leads out of the archive"
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        return f"{entry.filename} is a link or a special file"
    return f"{entry.filename} has {entry.file_size} bytes" if entry.file_size > MAX_FILE_BYTES else None


def _read_folder(folder: Path) -> tuple[dict[str, bytes], list[str]]:
    files: dict[str, bytes] = {}
    problems: list[str] = []
    total = 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            problems.append(f"{inside} is a link or a special file")
            continue
        total += path.stat().st_size
        if path.stat().st_size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or len(files) >= MAX_FILES:
            return files, [*problems, "more or larger files than a bundle may have"]
        if "__pycache__" not in inside.parts:  # left by imports; the loader never executes it
            files[inside.as_posix()] = path.read_bytes()
    return files, problems
