"""A copy of the code that runs in children, so that any interpreter can import it.

The job's interpreter may not have llm4llm, or may have another version. The copy is named by its content: two versions never mix, and
a copy that somebody changed is noticed and replaced.
"""

import fcntl
import secrets
from collections.abc import Iterator
from pathlib import Path

import llm4llm
from llm4llm.kit import canonical_json, install_folder, sha256_bytes, sha256_text

_PACKAGE = Path(llm4llm.__file__).resolve().parent
_PARTS = ("runtime", "harness")


def stage_harness(home: Path) -> Path:
    """The folder to put first on PYTHONPATH; it holds llm4llm/{__init__,runtime,harness}. Safe to call from many processes at once."""
    content = dict(_sources())
    digest = sha256_text(canonical_json({name: sha256_bytes(blob) for name, blob in content.items()}))[:24]
    place = home / "harness" / digest
    if _intact(place, content):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _intact(place, content):
            _install(place, content)
    return place


def _install(place: Path, content: dict[str, bytes]) -> None:
    draft = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    for name, blob in content.items():
        file = draft / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(blob)
    if place.exists():
        # renamed, not removed: a child that runs from it keeps its open files
        place.rename(place.with_name(f"{draft.name}.changed"))
    install_folder(draft, place)


def _sources() -> Iterator[tuple[str, bytes]]:
    yield "llm4llm/__init__.py", (_PACKAGE / "__init__.py").read_bytes()
    for part in _PARTS:
        for file in sorted((_PACKAGE / part).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith("."):
                yield f"llm4llm/{file.relative_to(_PACKAGE).as_posix()}", file.read_bytes()


def _intact(place: Path, content: dict[str, bytes]) -> bool:
    try:
        return all((place / name).read_bytes() == blob for name, blob in content.items())
    except OSError:
        return False
