"""Files that are either the old content or the new one, whatever happens in between."""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from llm4llm.kit.folders import folder_below


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


def open_plain(path: Path) -> BinaryIO:
    """A regular file at a path of ours or of our user's, links followed. Nothing else is opened, since opening a pipe waits for ever.

    FileNotFoundError for anything else.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _as_absent(error, path.name) from error
    return _regular(opened, path.name)


def open_untrusted(root: Path, *parts: str) -> BinaryIO:
    """A regular file below a folder in which generated code can rename, link and replace whatever it likes. Only `root` is ours.

    No link is followed, and nothing that is no plain file is opened. FileNotFoundError for both, and for what was made unreadable.
    """
    start = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    name = "/".join(parts)
    try:
        with folder_below(start, parts[:-1]) as folder:
            opened = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise _as_absent(error, name) from error
    finally:
        os.close(start)
    return _regular(opened, name)


def _as_absent(error: OSError, name: str) -> OSError:
    """FileNotFoundError for everything that whoever owns a file can bring about: links, pipes, sockets, modes, and leases."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return FileNotFoundError(errno.ENOENT, "there is no such file", name)
    if error.errno in (errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EWOULDBLOCK):
        return FileNotFoundError(errno.ENOENT, "it is no plain file that can be read", name)
    return error


def _regular(opened: int, name: str) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise FileNotFoundError(errno.ENOENT, "it is no plain file", name)
    return os.fdopen(opened, "rb")


def write_untrusted(root: int, parts: tuple[str, ...], content: bytes) -> None:
    """Write a whole file below an open folder in which generated code may have put links. None is followed: OSError if one is there."""
    with folder_below(root, parts[:-1]) as folder:
        draft = f".{secrets.token_hex(8)}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
        os.rename(draft, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)


def tail(path: Path, max_bytes: int = 8192) -> str:
    """The end of a text file, whole lines where possible; empty if the file is missing."""
    with contextlib.suppress(FileNotFoundError), open_untrusted(path.parent, path.name) as file:
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
