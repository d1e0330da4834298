"""Files that are either the old content or the new one, whatever happens in between."""

import contextlib
import os
import secrets
import shutil
from pathlib import Path


def write_atomic(path: Path, content: bytes | str, mode: int = 0o644) -> None:
    """Put content at path: written beside it, flushed to disk, then renamed over it. Parent folders are made."""
    blob = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def copy_atomic(source: Path, path: Path) -> None:
    """Copy one file to path, so that path never holds a part of it."""
    write_atomic(path, source.read_bytes())


def install_folder(draft: Path, place: Path) -> None:
    """Rename a finished folder to its place; if another process was first, its folder stays and ours is removed."""
    try:
        os.rename(draft, place)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not place.is_dir():
            raise
        return
    _sync_folder(place.parent)


def tail(path: Path, max_bytes: int = 8192) -> str:
    """The end of a text file, whole lines where possible; empty if the file is missing."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - max_bytes))
        text = file.read().decode(errors="replace")
        if size > max_bytes and "\n" in text:
            text = text.split("\n", 1)[1]
        return text
    return ""


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; some file systems can't, and then it is as durable as they are."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
