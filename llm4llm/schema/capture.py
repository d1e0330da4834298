"""What the user's script made its models do."""

from typing import Annotated, Literal

from pydantic import Field

from llm4llm.schema.base import Frozen, Name, Names, Number, Samples, Sentence
from llm4llm.schema.environment import Environment
from llm4llm.schema.reason import Reason


class Root(Frozen):
    """A model instance that the script entered from outside."""

    id: Name  # r0, r1, … in order of first use
    module_class: Name
    fingerprint: Name  # sha256 over classes, configuration and parameter shapes
    config_sha256: Name | None = None  # of the configuration object alone; None if the model has none
    parameters: int
    parameter_bytes: int
    devices: Names
    dtypes: Names
    training: bool


class DriverCall(Frozen):
    """Calls into a root that share method and signature; the unit that is replayed."""

    id: Name  # d0, d1, … in order of first use
    root: Name
    method: Name  # "forward", "generate", …, or "loop" for forwards that hand a cache along
    signature: Name
    count: int
    wall_ms: Samples  # as the script itself saw them, first call included
    refusal: Reason | None = None  # why it can't be replayed


class ScriptEnd(Frozen):
    """How the script ended."""

    kind: Literal["returned", "exit", "raised", "time_up", "died"]
    exit_code: int | None
    error: Sentence | None = None  # the last line of the traceback


class Capture(Frozen):
    """Roots and driver calls of one run of the script."""

    end: ScriptEnd
    environment: Environment
    roots: Annotated[tuple[Root, ...], Field(max_length=1_000)]
    drivers: Annotated[tuple[DriverCall, ...], Field(max_length=5_000)]
    wall_ms: Number  # whole script, imports included
    notes: Annotated[tuple[Reason, ...], Field(max_length=1_000)] = ()  # what could not be instrumented, and why
    partial: bool = False
