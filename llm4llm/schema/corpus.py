"""Candidates with known answers, and what the judge made of them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from llm4llm.schema.base import Frozen

Dtype = Literal["float32", "bfloat16"]
# as labelled; wrong but passed; honest but not passed; not passed, for another reason than the label names; no verdict was reached
Fate = Literal["as_labelled", "missed", "falsely_rejected", "other_reason", "not_judged"]


class Label(BaseModel):
    """What is true of one candidate file. Further fields are for the corpus's own readers."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    target: str  # class that it replaces
    label: Literal["wrong", "honest"]
    kind: str  # what sort of fault, or of trap for a judge that is too strict
    why: str = ""
    expected_outcomes: tuple[str, ...] = ()
    expected: tuple[tuple[str, str], ...] = ()  # (outcome, kind) pairs, where the kind is part of the answer
    max_speedup: float | None = None  # up to which a wrong file may pass: it does no harm and no good
    dtypes: tuple[Dtype, ...] = ("float32", "bfloat16")
    phases: tuple[str, ...] = ()  # in whose tasks it shows; empty: in any
    device: Literal["any", "cpu", "cuda"] = "any"
    needs: Literal["triton", "cuda"] | None = None  # triton runs interpreted where there is no GPU

    def runs_on(self, device: str) -> bool:
        """Whether the label holds for tasks on a device such as `cpu` or `cuda:0`."""
        kind = device.partition(":")[0]
        return self.device in ("any", kind) and (self.needs != "cuda" or kind == "cuda")

    def fate(self, outcome: str, kind: str, speedup: float | None) -> Fate:
        """What a verdict means under this label."""
        if outcome == "passed":
            harmless = self.max_speedup is not None and (speedup is None or speedup <= self.max_speedup)
            return "as_labelled" if self.label == "honest" or harmless else "missed"
        if self.label == "honest":
            return "falsely_rejected"
        named = outcome in self.expected_outcomes or (outcome, kind) in self.expected
        return "as_labelled" if named or not (self.expected_outcomes or self.expected) else "other_reason"


class Heard(Frozen):
    """One candidate on one task."""

    candidate: str
    dtype: Dtype
    target: str
    phase: str
    label: Literal["wrong", "honest"]
    kind: str
    outcome: str
    verdict_kind: str
    reason: str
    speedup: float | None = None
    seconds: float
    fate: Fate


class SelftestReport(Frozen):
    """Everything that was judged, and what was left out with its reason."""

    device: str
    heard: tuple[Heard, ...]
    left_out: dict[str, str]
    seconds: float

    @property
    def clean(self) -> bool:
        """Nothing wrong passed, nothing honest was turned away, and everything got a verdict."""
        return all(one.fate in ("as_labelled", "other_reason") for one in self.heard)
