"""The judge's typed answer on a candidate."""

from typing import Annotated, Literal

from pydantic import Field

from llm4llm.schema.base import Facts, Frozen, Name, Number, Sentence
from llm4llm.schema.measurement import Paired

Language = Literal["triton", "torch", "mixed", "unknown"]


class KernelFacts(Frozen):
    """What the compiler said of one kernel for one GPU target."""

    kernel: Name
    target: Name  # "sm_90"
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    tensor_cores: bool | None = None  # whether it uses matrix instructions


class _Verdict(Frozen):
    reason: Sentence  # one sentence that a person can act on
    language: Language = "unknown"
    feedback: Annotated[tuple[Sentence, ...], Field(max_length=40)] = ()  # at most 40 lines for the author of the candidate
    gates: Annotated[tuple[Name, ...], Field(max_length=200)] = ()  # gates that were run, in order
    kernels: Annotated[tuple[KernelFacts, ...], Field(max_length=500)] = ()
    seconds: Number = 0.0


class Passed(_Verdict):
    outcome: Literal["passed"] = "passed"
    kind: Name = "passed"
    timing: Paired | None  # None where nothing could be measured (interpreted kernels)
    speedup: float | None
    ci95: tuple[float, float] | None
    proven_domain: Facts
    config: Facts  # the winner of CONFIGS, frozen


class Incorrect(_Verdict):
    outcome: Literal["incorrect"] = "incorrect"
    kind: Name


class Failed(_Verdict):
    outcome: Literal["failed"] = "failed"
    kind: Name


class Rejected(_Verdict):
    outcome: Literal["rejected"] = "rejected"
    kind: Name


Verdict = Annotated[Passed | Incorrect | Failed | Rejected, Field(discriminator="outcome")]
