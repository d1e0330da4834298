"""Load a bundle: `import llm4llm_bundle; llm4llm_bundle.apply(model)`.

A bundle is a folder or a zip archive with manifest.json, this package and candidate files. It needs torch, triton where a patch uses it,
and nothing else. Before any code besides this file runs, every file is compared with its sha256 in the manifest, and what is executed are
the very bytes that were compared: never a cached compilation, never a file that the manifest does not name.

    sys.path.insert(0, "bundle.zip")        # or the unpacked folder
    import llm4llm_bundle
    llm4llm_bundle.apply(model)             # raises Refused, with the model untouched, where it does not fit
    llm4llm_bundle.status(model)            # hits and fallbacks of every patched module
    llm4llm_bundle.remove(model)            # the model is exactly as before
"""

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import stat
import sys
import tempfile
import weakref
import zipfile
import zlib
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import Any

MANIFEST = "manifest.json"
PACKAGE = "llm4llm_bundle"
SCHEMA_VERSION = 1
MAX_FILES, MAX_FILE_BYTES, MAX_TOTAL_BYTES = 2000, 16 << 20, 64 << 20


class Refused(Exception):
    """The bundle does not fit, or is not what its manifest says; nothing was changed. `code` is for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Bundle:
    """A bundle at a place on disk. Verified when first used."""

    def __init__(self, location: Path | str) -> None:
        self.location = Path(location).resolve()
        self._handles: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @functools.cached_property
    def files(self) -> dict[str, bytes]:
        """Every file with the content that its hash was checked of. Raises Refused."""
        return verified(read_files(self.location))

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.files[MANIFEST])
        return content

    @functools.cached_property
    def opened(self) -> Any:
        """The carried runtime's OpenBundle."""
        if importlib.util.find_spec("torch") is None:
            raise Refused("torch_missing", "torch can't be imported here; a bundle needs torch and nothing of llm4llm")
        modules = self._runtime()
        return modules["bundle"].OpenBundle(self.manifest, self._patch_folder())

    def misfit(self, model: Any) -> str | None:
        """None if the bundle was made for this model, else why not."""
        answer: str | None = self.opened.misfit(model)
        return answer

    def apply(self, model: Any) -> Any:
        """Put the patches on a model; a second call changes nothing. Returns the handle. Raises Refused."""
        handle = self._handles.get(model)
        if handle is not None:
            handle.enable()
            return handle
        opened = self.opened
        try:
            handle = opened.apply(model)
        except self._runtime()["refusal"].Refused as refused:
            raise Refused(refused.code, refused.text) from refused
        self._handles[model] = handle
        return handle

    def remove(self, model: Any) -> None:
        """Take the patches off again; nothing happens where there are none."""
        handle = self._handles.pop(model, None)
        if handle is not None:
            handle.remove()

    def status(self, model: Any) -> dict[str, Any]:
        """{"applied": bool, "enabled": bool, "sites": [{"patch", "path", "hits", "fallbacks", "fallback_reasons", "disabled"}]}."""
        handle = self._handles.get(model)
        return {"applied": False, "enabled": False, "sites": []} if handle is None else {"applied": True, **handle.status()}

    def explain(self) -> str:
        """What is replaced, where, when, and what was measured; for people."""
        return self.files["README.md"].decode()

    @functools.lru_cache(maxsize=1)  # noqa: B019 - one bundle lives as long as the process that loaded it
    def _runtime(self) -> dict[str, ModuleType]:
        """The carried runtime, loaded under a name of its own so that two bundles never mix."""
        package = f"_{PACKAGE}_{hashlib.sha256(self.files[MANIFEST]).hexdigest()[:16]}"
        loaded = {}
        for name in self.manifest["runtime_modules"]:
            file = f"{PACKAGE}/runtime/{name}.py"
            full = package if name == "__init__" else f"{package}.{name}"
            if full not in sys.modules:
                _execute(full, self.location / file, self.files[file])
            loaded[name] = sys.modules[full]
        return loaded

    def _patch_folder(self) -> Path:
        """Where candidate files lie as real files, which Triton needs: in the bundle's own folder, else in a private cache."""
        if self.location.is_dir():
            return self.location / "patches"
        folder = private_folder(hashlib.sha256(self.files[MANIFEST]).hexdigest())
        for name, content in self.files.items():
            path = PurePosixPath(name)
            if path.parts[0] == "patches":
                _write(folder / path.name, content)
        return folder


def read_files(location: Path) -> dict[str, bytes]:
    """Content of every file of a bundle by its path inside. Raises Refused for what no bundle holds."""
    if location.is_dir():
        return _read_folder(location)
    try:
        with zipfile.ZipFile(location) as archive:
            return _read_archive(archive)
    except FileNotFoundError:
        raise Refused("bundle_missing", f"{location} does not exist") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise Refused("bundle_damaged", f"{location} is no readable zip archive ({error})") from None


def _read_archive(archive: zipfile.ZipFile) -> dict[str, bytes]:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    names = [entry.filename for entry in entries]
    problems = [problem for entry in entries if (problem := entry_problem(entry))]
    if len(set(names)) != len(names):
        problems.append("two entries have the same name")
    if len(entries) > MAX_FILES or sum(entry.file_size for entry in entries) > MAX_TOTAL_BYTES:
        problems.append("more or larger files than a bundle may have")
    if problems:
        raise Refused("bundle_unsafe", f"the archive is not a bundle: {problems[0]}")
    return {entry.filename: archive.read(entry) for entry in entries}


def entry_problem(entry: zipfile.ZipInfo) -> str | None:
    """Why an archive's entry must not be trusted; None if it is an ordinary file below the root."""
    path = PurePosixPath(entry.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in entry.filename or str(path) != entry.filename:
        return f"{entry.filename!r} leads out of the archive"
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        return f"{entry.filename} is a link or a special file"
    if entry.file_size > MAX_FILE_BYTES:
        return f"{entry.filename} has {entry.file_size} bytes"
    return None


def _read_folder(location: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    total = 0
    for path in sorted(location.rglob("*")):
        inside = path.relative_to(location)
        if "__pycache__" in inside.parts or any(part.startswith(".") for part in inside.parts) or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink() or not path.is_file():
            raise Refused("bundle_unsafe", f"{inside} is a link or a special file")
        size = path.stat().st_size
        total += size
        if len(found) >= MAX_FILES or size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES:
            raise Refused("bundle_unsafe", "more or larger files than a bundle may have")
        found[inside.as_posix()] = path.read_bytes()
    return found


def verified(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same files, once all of them have the hash that the manifest names. Raises Refused."""
    problems = hash_problems(files)
    if problems:
        raise Refused("bundle_altered", problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""))
    return files


def hash_problems(files: dict[str, bytes]) -> list[str]:
    """One sentence for every file that is missing, unexpected or not what the manifest says."""
    if MANIFEST not in files:
        return ["there is no manifest.json; this is not a bundle"]
    try:
        manifest = json.loads(files[MANIFEST])
        version, listed = manifest["schema_version"], dict(manifest["files"])
    except (ValueError, KeyError, TypeError):
        return ["manifest.json can't be read"]
    if version != SCHEMA_VERSION:
        return [f"the bundle has schema version {version}, this loader reads {SCHEMA_VERSION}"]
    problems = [f"{name} is listed in the manifest and missing" for name in listed if name not in files]
    problems += [f"{name} is not listed in the manifest" for name in files if name not in listed and name != MANIFEST]
    for name, wanted in listed.items():
        if name in files and hashlib.sha256(files[name]).hexdigest() != wanted:
            problems.append(f"{name} was altered: its sha256 is not the one in the manifest")
    needed = [f"{PACKAGE}/runtime/{name}.py" for name in manifest.get("runtime_modules", ())]
    needed += [patch["file"] for patch in manifest.get("patches", ())]
    return problems + [f"{name} is needed and not listed in the manifest" for name in needed if name not in listed]


def private_folder(content_hash: str) -> Path:
    """A folder that only this user can enter: kept under the user's cache by content, or a temporary one where that is not possible."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / PACKAGE
    folder = base / content_hash[:32]
    with contextlib.suppress(OSError):
        for part in (base, folder):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.lstat()
        own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and stat.S_IMODE(facts.st_mode) == 0o700
        if own and os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix=f"{PACKAGE}_"))


def _write(path: Path, content: bytes) -> None:
    """Atomic; a file that already has this content is left alone."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == content:
        return
    handle, partial = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    Path(partial).replace(path)


class _ExactLoader(SourceFileLoader):
    """Executes given bytes."""

    def __init__(self, name: str, path: Path, content: bytes) -> None:
        super().__init__(name, str(path))
        self._content = content

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self._content, self.path, "exec", dont_inherit=True)


def _execute(name: str, path: Path, content: bytes) -> None:
    loader = _ExactLoader(name, path, content)
    spec = ModuleSpec(name, loader, origin=str(path), is_package=path.name == "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise


@functools.cache
def bundle() -> Bundle:
    """The bundle that this file was imported from."""
    package = Path(__file__).resolve().parent
    return Bundle(package.parent)


def apply(model: Any) -> Any:
    """Put this bundle's patches on a model. Raises Refused, with the model untouched, where they do not fit."""
    return bundle().apply(model)


def remove(model: Any) -> None:
    """Take this bundle's patches off: the model is exactly as before."""
    bundle().remove(model)


def status(model: Any) -> dict[str, Any]:
    """Hits, fallbacks and their reasons of every patched module."""
    return bundle().status(model)


def explain() -> str:
    """What is replaced, where, when, and what was measured; for people."""
    return bundle().explain()
