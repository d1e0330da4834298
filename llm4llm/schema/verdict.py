"""The judge's typed answer on a candidate."""

from typing import Annotated, Any, Literal

from pydantic import Field

from llm4llm.schema.base import Frozen
from llm4llm.schema.measurement import Paired

Language = Literal["triton", "torch", "mixed", "unknown"]


class KernelFacts(Frozen):
    """What the compiler said of one kernel for one GPU target."""

    kernel: str
    target: str  # "sm_90"
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    tensor_cores: bool | None = None  # whether it uses matrix instructions


class _Verdict(Frozen):
    reason: str  # one sentence that a person can act on
    language: Language = "unknown"
    feedback: tuple[str, ...] = ()  # at most 40 lines for the author of the candidate
    gates: tuple[str, ...] = ()  # gates that were run, in order
    kernels: tuple[KernelFacts, ...] = ()
    seconds: float = 0.0


class Passed(_Verdict):
    outcome: Literal["passed"] = "passed"
    kind: str = "passed"
    timing: Paired | None  # None where nothing could be measured (interpreted kernels)
    speedup: float | None
    ci95: tuple[float, float] | None
    proven_domain: dict[str, Any]
    config: dict[str, Any]  # the winner of CONFIGS, frozen


class Incorrect(_Verdict):
    outcome: Literal["incorrect"] = "incorrect"
    kind: str


class Failed(_Verdict):
    outcome: Literal["failed"] = "failed"
    kind: str


class Rejected(_Verdict):
    outcome: Literal["rejected"] = "rejected"
    kind: str


Verdict = Annotated[Passed | Incorrect | Failed | Rejected, Field(discriminator="outcome")]
