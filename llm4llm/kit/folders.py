"""Folders in which generated code can rename, link and replace whatever it likes.

They are emptied, moved and looked through by descriptors, each opened from the one above without following links, so that no path is
resolved twice.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH = 1000  # names that are held in memory at once
_PATIENCE_S = 300.0  # somebody may go on adding files
_ATTEMPTS = 3
_DEEPEST = 8


class NotPlain(Exception):
    """A folder holds something else than a bounded number of plain files of its own; the message says what."""


def inner_folder(folder: int, name: str) -> int:
    """A folder in an open one. OSError for a link."""
    return os.open(name, os.O_RDONLY | _FOLDER, dir_fd=folder)


@contextlib.contextmanager
def folder_below(root: int, parts: Iterable[str]) -> Iterator[int]:
    """A folder some levels below an open one, which stays open. Each is entered from the one above: OSError for a link on the way."""
    folder = os.dup(root)
    try:
        for part in parts:
            inner = inner_folder(folder, part)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def remove_untrusted(place: Path, patience_s: float = _PATIENCE_S) -> bool:
    """Remove a file or a folder with everything in it, links themselves and not what they lead to; True if nothing is left.

    Only `place.parent` is ours. Neither depth nor modes nor names that change meanwhile raise anything.
    """
    until = time.monotonic() + patience_s
    with contextlib.suppress(OSError):
        parent = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for _ in range(_ATTEMPTS):
                if _unlinked(parent, place.name):
                    break
                with _opened(place.name, parent) as top:
                    _cleared(top, (), until)
                with contextlib.suppress(OSError):
                    os.rmdir(place.name, dir_fd=parent)
                    break
        finally:
            os.close(parent)
    return not os.path.lexists(place)


def clear_untrusted(root: Path, keep: Container[str] = (), patience_s: float = _PATIENCE_S) -> bool:
    """Remove everything in a folder but the names in `keep`; True if nothing else is left. Only `root` is ours."""
    until = time.monotonic() + patience_s
    try:
        with _opened(str(root), None) as top:
            return _cleared(top, keep, until)
    except OSError:
        return not os.path.lexists(root)


def fresh_untrusted(root: Path, name: str) -> Path:
    """An empty folder `root`/NAME, whatever lay there before. Only `root` is ours; OSError if others keep putting something there."""
    for attempt in range(_ATTEMPTS):
        remove_untrusted(root / name)
        try:
            os.mkdir(root / name)
            break
        except FileExistsError:
            if attempt + 1 == _ATTEMPTS:
                raise
    return root / name


def take_untrusted(root: Path, parts: tuple[str, ...], place: Path, most_files: int, most_bytes: int) -> None:
    """Move a folder from below `root` to `place`, which is ours, in the place of what lay there.

    OSError if there is none, NotPlain if it holds links, pipes, files with another name elsewhere, or too much; then nothing is left at
    `place`. Whoever has a file of it open can still write to that one.
    """
    remove_untrusted(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with folder_below(opened, parts[:-1]) as folder:
            os.rename(parts[-1], place, src_dir_fd=folder)
    finally:
        os.close(opened)
    try:
        check_plain(place, most_files, most_bytes)
    except BaseException:
        remove_untrusted(place)
        raise


def check_plain(place: Path, most_files: int, most_bytes: int) -> None:
    """NotPlain for a folder with anything else than folders and plain files that have one name, or with too many or too large ones."""
    try:
        folder = os.open(place, os.O_RDONLY | _FOLDER)
    except OSError as error:
        raise NotPlain(f"{place.name} is no folder") from error
    left = [most_files, most_bytes]
    try:
        _look(folder, _DEEPEST, left)
    except OSError as error:
        raise NotPlain(f"{place.name} changed while it was looked at") from error
    finally:
        os.close(folder)


def _look(folder: int, levels: int, left: list[int]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            found = entry.stat(follow_symlinks=False)
            left[0] -= 1
            if stat.S_ISDIR(found.st_mode):
                if levels == 0:
                    raise NotPlain("its folders lie too deep")
                inner = inner_folder(folder, entry.name)
                try:
                    _look(inner, levels - 1, left)
                finally:
                    os.close(inner)
            elif stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                left[1] -= found.st_size
            else:
                raise NotPlain(f"{entry.name[:100]!r} in it is no plain file, or has another name as well")
            if min(left) < 0:
                raise NotPlain("it holds too many files, or too large ones")


def _cleared(top: int, keep: Container[str], until: float) -> bool:
    """Remove what lies in an open folder. Folders inside of others are moved up into it first, so depth costs neither stack nor files."""
    while names := _some(top, keep):
        # every name is tried, whatever becomes of the others
        if not sum(_removed(top, name, until) for name in names) or time.monotonic() > until:
            return False
    return True


def _removed(top: int, name: str, until: float) -> bool:
    """True if anything of it has gone, or has come up to where the next look finds it."""
    with contextlib.suppress(OSError):
        if _unlinked(top, name):
            return True
        moved = False
        with contextlib.suppress(OSError), _opened(name, top) as folder:
            while (inner := _some(folder, ())) and time.monotonic() <= until:
                changed = sum(_unlinked(folder, one) or _moved_up(folder, one, top) for one in inner)
                if not changed:
                    break
                moved = True
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=top)
            return True
        return moved
    return False


def _unlinked(folder: int, name: str) -> bool:
    """False for a folder, or for what can't be removed."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _moved_up(folder: int, name: str, top: int) -> bool:
    try:
        with _opened(name, folder):  # whoever moves a folder has to be allowed to write into it
            os.rename(name, f".{secrets.token_hex(12)}", src_dir_fd=folder, dst_dir_fd=top)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _opened(name: str, folder: int | None) -> Iterator[int]:
    """A folder of ours, with its owner's rights if they were taken away. OSError for anything else."""
    look = os.open(name, os.O_PATH | _FOLDER, dir_fd=folder)
    try:
        mode = stat.S_IMODE(os.fstat(look).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            with contextlib.suppress(OSError):
                # by the descriptor: chmod of a name follows links
                os.chmod(f"/proc/self/fd/{look}", mode | stat.S_IRWXU)
        opened = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=look)
    finally:
        os.close(look)
    try:
        yield opened
    finally:
        os.close(opened)


def _some(folder: int, keep: Container[str]) -> list[str]:
    """Names in a folder, a bounded number of them."""
    names: list[str] = []
    os.lseek(folder, 0, os.SEEK_SET)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in keep:
                names.append(entry.name)
            if len(names) == _BATCH:
                break
    return names
