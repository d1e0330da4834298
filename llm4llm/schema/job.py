"""One request: a script with its arguments, a target, an agent and a budget."""

from enum import StrEnum
from typing import Literal

from llm4llm.schema.base import Frozen
from llm4llm.schema.reason import Reason


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StageName(StrEnum):
    """The stages of a job in the order in which they run."""

    CAPTURE = "capture"
    PROFILE = "profile"
    TASK = "task"
    EPISODE = "episode"
    VERDICT = "verdict"
    ACCEPTANCE = "acceptance"
    BUNDLE = "bundle"


class Budget(Frozen):
    """What a job may spend."""

    seconds: float


class UploadedFile(Frozen):
    """A file that was handed in with a script; its content lies among the blobs."""

    path: str  # relative to the job's working folder, with / between its parts
    sha256: str
    bytes: int


class Request(Frozen):
    """What the user asked for; two equal requests describe the same work.

    An uploaded script is laid out by whoever runs the job: its `script` and `working_directory` are relative to the job's own working
    folder, and `python` is empty for the worker's own interpreter.
    """

    script: str  # absolute path, or a relative one for an uploaded script
    script_sha256: str
    arguments: tuple[str, ...] = ()
    working_directory: str
    python: str  # interpreter that runs the script and every other child
    environment: dict[str, str] = {}  # the only variables that the script sees
    stdin: str | None = None  # path of a file that holds the script's standard input
    target: str = "auto"
    agent: str = "seeds"
    budget: Budget = Budget(seconds=600.0)
    min_gain: float = 1.02  # end-to-end speedup that the low end of the interval must exceed
    objective: Literal["latency"] = "latency"
    stop_after: StageName | None = None  # end in good order once this stage has finished
    files: tuple[UploadedFile, ...] = ()  # besides the script
    network: bool = False  # whether the script may use the network

    @property
    def uploaded(self) -> bool:
        """True if script and files come from the blob store and not from a folder of this machine."""
        return not self.script.startswith("/")


class Job(Frozen):
    """A request with its place in the queue and its end."""

    id: str
    request: Request
    status: JobStatus
    stage: StageName | None = None  # the stage that runs now, or the last one that ran
    reason: Reason | None = None  # set once the job has ended
    created_at: str  # ISO 8601, UTC
    ended_at: str | None = None
