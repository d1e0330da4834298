"""What the user's script made its models do."""

from typing import Literal

from llm4llm.schema.base import Frozen
from llm4llm.schema.environment import Environment
from llm4llm.schema.reason import Reason


class Root(Frozen):
    """A model instance that the script entered from outside."""

    id: str  # r0, r1, … in order of first use
    module_class: str
    fingerprint: str  # sha256 over classes, configuration and parameter shapes
    config_sha256: str | None = None  # of the configuration object alone; None if the model has none
    parameters: int
    parameter_bytes: int
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    training: bool


class DriverCall(Frozen):
    """Calls into a root that share method and signature; the unit that is replayed."""

    id: str  # d0, d1, … in order of first use
    root: str
    method: str  # "forward", "generate", …, or "loop" for forwards that hand a cache along
    signature: str
    count: int
    wall_ms: tuple[float, ...]  # as the script itself saw them, first call included
    refusal: Reason | None = None  # why it can't be replayed


class ScriptEnd(Frozen):
    """How the script ended."""

    kind: Literal["returned", "exit", "raised", "time_up", "died"]
    exit_code: int | None
    error: str | None = None  # the last line of the traceback


class Capture(Frozen):
    """Roots and driver calls of one run of the script."""

    end: ScriptEnd
    environment: Environment
    roots: tuple[Root, ...]
    drivers: tuple[DriverCall, ...]
    wall_ms: float  # whole script, imports included
    notes: tuple[Reason, ...] = ()  # what could not be instrumented, and why
    partial: bool = False
