"""What to start and what it may use."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """What a child and everything it starts may use; None means no limit."""

    wall_s: float | None = None  # from start to end
    memory_bytes: int | None = None  # resident, summed over the group
    processes: int | None = None
    file_bytes: int | None = None  # size of any one file that it writes
    network: bool = True  # False: cut off, where this machine permits that (see Sandbox.level)


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
    channel: bool = True  # False for children that talk over a socket of their own
