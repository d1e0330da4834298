"""Write a bundle: equal contents give equal bytes."""

import importlib.resources
import io
import stat
import zipfile

from llm4llm.kit import canonical_json, sha256_bytes
from llm4llm.stages.bundle.contents import Contents, manifest_of, patch_file
from llm4llm.stages.bundle.readme import readme_of

PACKAGE = "llm4llm_bundle"
# in the order in which the loader executes them: each imports only those before it
RUNTIME_MODULES = (
    "__init__",
    "refusal",
    "signature",
    "state",
    "observation",
    "guard",
    "domain",
    "weights",
    "effects",
    "candidate",
    "dispatch",
    "apply",
    "bundle",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can name
_MAIN = b'"""`python -m llm4llm_bundle` says what this bundle replaces."""\n\nfrom llm4llm_bundle import explain\n\nprint(explain())\n'


def pack(contents: Contents) -> bytes:
    """The archive. Raises KeyError if a patch's root or candidate file is not among the contents."""
    return archived(bundle_files(contents))


def bundle_files(contents: Contents) -> dict[str, bytes]:
    """Every file of the bundle by its path inside, manifest included."""
    manifest = manifest_of(contents)
    files = {patch_file(patch): contents.candidates[patch.candidate_sha256] for patch in contents.acceptance.kept}
    files |= _package()
    files["README.md"] = readme_of(manifest).encode()
    files["evidence/acceptance.json"] = _json(contents.acceptance.model_dump(mode="json"))
    for name, verdict in contents.verdicts.items():
        files[f"evidence/verdict_{name}.json"] = _json(verdict.model_dump(mode="json"))
    manifest["runtime_modules"] = list(RUNTIME_MODULES)
    manifest["files"] = {name: sha256_bytes(content) for name, content in sorted(files.items())}
    files["manifest.json"] = _json(manifest)
    return files


def archived(files: dict[str, bytes]) -> bytes:
    """A zip archive with fixed order, times and permissions."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda name: (name != "manifest.json", name)):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def _package() -> dict[str, bytes]:
    """The carried loader and runtime, as files: importing them would import torch."""
    source = importlib.resources.files("llm4llm") / "runtime"
    files = {f"{PACKAGE}/runtime/{name}.py": (source / f"{name}.py").read_bytes() for name in RUNTIME_MODULES}
    return {**files, f"{PACKAGE}/__init__.py": (source / "loader.py").read_bytes(), f"{PACKAGE}/__main__.py": _MAIN}


def _json(value: object) -> bytes:
    return canonical_json(value).encode() + b"\n"
