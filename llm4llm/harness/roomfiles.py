"""Files in a judgement's folder, in which candidates can put links and pipes in the place of anything."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folder:
    """A folder that is known by its inode: what lies at its path later may be another one."""

    path: Path
    identity: tuple[int, int]

    @classmethod
    def at(cls, path: Path) -> "Folder":
        return cls(path, _identity(os.lstat(path)))

    def end_of(self, name: str, most: int) -> bytes:
        """The last bytes of a plain file in it. OSError for anything else: no link is followed, and no pipe is waited for."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if _identity(os.fstat(folder)) != self.identity:
                raise OSError(f"{self.path} was replaced")
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise OSError(f"{name} is no plain file")
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
