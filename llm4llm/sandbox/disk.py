"""How much lies in a child's folders, which it fills while we look and where every name may be meant to mislead."""

import os
from collections.abc import Iterable
from pathlib import Path

MOST_LEVELS = 100  # each keeps a file descriptor open while it is looked at
_LEAST_BYTES = 4096  # of any entry: names and inodes fill a disk as well
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unmeasurable(Exception):
    """Nobody can tell how much there is; the message says why."""


def used_bytes(folders: Iterable[Path], enough: int) -> int:
    """Bytes on disk of everything below some folders, counted until there are more than `enough`. What goes away meanwhile counts nothing.

    Folders are entered from the one above, never by path: a path may be too long to be opened, and links lead elsewhere. Raises
    Unmeasurable.
    """
    total = 0
    for folder in folders:
        walk = _Walk()
        try:
            walk.enter(folder)
            while total + walk.bytes <= enough and walk.step():
                pass
        finally:
            walk.close()
        total += walk.bytes
    return total


class _Walk:
    """Depth first, with one open file descriptor for each folder on the way down."""

    def __init__(self) -> None:
        self.bytes = 0
        self._way: list[tuple[int, list[str]]] = []  # open folders, and the names of those in it that wait

    def step(self) -> bool:
        """Enter one more folder; False if there is none."""
        while self._way:
            _, waiting = self._way[-1]
            if waiting:
                self.enter(waiting.pop())
                return True
            os.close(self._way.pop()[0])
        return False

    def enter(self, name: str | Path) -> None:
        if len(self._way) >= MOST_LEVELS:
            raise Unmeasurable(f"its folders are more than {MOST_LEVELS} levels deep")
        try:
            fd = os.open(name, _OPEN, dir_fd=self._way[-1][0] if self._way else None)
        except FileNotFoundError:
            return
        except OSError as error:
            if self._way and isinstance(error, NotADirectoryError):
                return  # a file or a link took its place
            raise Unmeasurable(f"a folder of its own can't be read ({error.strerror})") from error
        waiting: list[str] = []
        self._way.append((fd, waiting))
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    self._count(entry, waiting)
        except OSError as error:
            raise Unmeasurable(f"a folder of its own can't be read ({error.strerror})") from error

    def close(self) -> None:
        while self._way:
            os.close(self._way.pop()[0])

    def _count(self, entry: "os.DirEntry[str]", waiting: list[str]) -> None:
        if entry.is_dir(follow_symlinks=False):
            waiting.append(entry.name)
        try:
            self.bytes += max(_LEAST_BYTES, 512 * entry.stat(follow_symlinks=False).st_blocks)
        except FileNotFoundError:
            return
