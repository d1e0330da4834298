"""What the stages are handed: one-call protocols for everything outside them, so that a stage reaches for nothing by itself."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llm4llm.kit import Clock
from llm4llm.sandbox.answer import Failed, Ok, OnEvent
from llm4llm.schema.acceptance import Patch, Trialled
from llm4llm.schema.event import Event
from llm4llm.schema.job import Request
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Verdict


class Host(Protocol):
    """The live host: the process that ran the user's script and still holds its models.

    It is started by its first request and rebuilt when a request finds it dead: the script runs again and gives the same root, driver and
    hotspot ids. A request that kills it is answered with `Failed` and is not repeated.
    """

    def request(self, op: str, payload: dict[str, Any], timeout_s: float, on_event: OnEvent | None = None) -> Ok | Failed: ...


class Judge(Protocol):
    """Judges one candidate in a fresh process. `held_out` draws inputs that no earlier verdict of the job used."""

    def __call__(self, task: Task, candidate_file: Path, *, time_limit_s: float, held_out: bool = False) -> Verdict: ...


class FreshProcess(Protocol):
    """Runs the unmodified script in fresh processes with and without a temporary bundle of these patches.

    The answer's checks compare standard output (byte for byte), exit code and hit counters; its decision is `keep` only if the paired gain
    interval clears the job's threshold.
    """

    def __call__(self, patches: tuple[Patch, ...], time_limit_s: float, excuse: str | None = None) -> Trialled:
        """`excuse` names the differing token that the live model's own rounding explains: standard output may then differ as well."""
        ...


class Progress(Protocol):
    """Hears of everything that happens to a job."""

    def __call__(self, event: Event) -> None: ...


class Blobs(Protocol):
    """Files by the sha256 of their content."""

    def put(self, content: bytes) -> str: ...

    def path(self, sha256: str) -> Path: ...


__all__ = ["TASKS", "Blobs", "Clock", "Failed", "FreshProcess", "Host", "Judge", "Ok", "OnEvent", "Progress", "Tools"]

TASKS = "tasks"


@dataclass(frozen=True)
class Tools:
    """Everything that a stage may use besides its typed inputs."""

    host: Host
    judge: Judge
    confirm: FreshProcess
    clock: Clock
    progress: Progress
    blobs: Blobs
    scratch: Path  # the job's own folder, in which its script can write; removed with the job
    deadline: float  # monotonic seconds at which the stage must have ended
    cancelled: Callable[[], bool]  # asked between steps
    device: Callable[[], AbstractContextManager[object]] = nullcontext  # held while a stage measures; entering it waits for the device
    private: Path | None = None  # where no script can write; None: there is no such place
    request: Request | None = None  # the job's request with this machine's paths; None: as it was stored

    def seconds_left(self) -> float:
        """Seconds until the stage's deadline, never negative."""
        return max(0.0, self.deadline - self.clock.monotonic())

    def task_folder(self, task_id: str) -> Path:
        """Where an extracted task lies."""
        return (self.private or self.scratch) / TASKS / task_id

    def candidate_file(self, sha256: str) -> Path:
        """A stored candidate as a file whose name ends in `.py`, so that it can be loaded by path."""
        file = (self.private or self.scratch) / "candidates" / f"{sha256}.py"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_bytes(self.blobs.path(sha256).read_bytes())
            partial.replace(file)
        return file
