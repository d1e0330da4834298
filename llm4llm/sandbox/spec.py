"""What to start and what it may use."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What a child and everything it starts may use; None means no limit."""

    wall_s: float | None = None  # from start to end
    memory_bytes: int | None = None  # resident, summed over the group
    processes: int | None = None
    tasks: int = 4096  # threads and zombies, where processes are limited: they use up the machine's numbers as well
    file_bytes: int | None = None  # size of any one file that it writes
    disk_bytes: int | None = None  # of all that lies in `disk_folders`
    disk_folders: tuple[Path, ...] = ()
    network: bool = True  # False: cut off, where this machine permits that (see Sandbox.level)


@dataclass(frozen=True)
class Files:
    """A confined child's view of the file system, where this machine permits that: readable but for `hidden`, writable below `writable`."""

    hidden: tuple[Path, ...]  # folders whose content it can't see
    visible: tuple[Path, ...] = ()  # exceptions inside of them
    writable: tuple[Path, ...] = ()
    # (device, inode) of paths above that somebody less trusted could replace: they are what they were, or the child does not start
    pinned: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ChildSpec:
    """A child process that runs one of the harness's modules.

    `environment` is all that the child sees, besides the channel and the staged harness: see environment.py for how to make one.
    """

    module: str  # "llm4llm.harness.host"
    python: str
    working_directory: Path
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    files: Files | None = None  # None: whatever the user may
    channel: bool = True  # False for children that talk over a socket of their own
