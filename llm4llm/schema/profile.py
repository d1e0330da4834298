"""Where the workload's time goes."""

from typing import Annotated, Literal

from pydantic import Field

from llm4llm.schema.base import Frozen, Name, Number, Paths, Prose
from llm4llm.schema.measurement import Measurement
from llm4llm.schema.reason import Reason

Phase = Literal["prefill", "decode", "encode", "forward"]
Bound = Literal["memory", "compute", "launch", "host", "unknown"]


class Hotspot(Frozen):
    """A module family in a phase."""

    id: Name
    root: Name
    module_class: Name
    phase: Phase
    family: Name  # signature shared by its instances
    paths: Paths  # instances below the root that were called in this phase
    calls: int  # over the whole workload
    host_ms: Number  # inclusive, per pass over the workload
    self_host_ms: Number
    device_ms: Number | None = None  # inclusive; None without a GPU
    self_device_ms: Number | None = None
    share: Number  # inclusive share of the workload's time, 0 to 1
    self_share: Number
    bound: Bound
    ceiling: Number  # end-to-end speedup if this hotspot took no time: 1 / (1 - share) (Amdahl)
    refusal: Reason | None = None  # why it can't become a task


class PhaseTime(Frozen):
    """Time of one phase per pass over the workload."""

    phase: Phase
    root: Name
    host_ms: Number
    device_ms: Number | None = None
    root_calls: int


class ProfileReport(Frozen):
    """Hotspots ranked by share; shares of nested families overlap, self shares do not."""

    end_to_end: Measurement  # replayed driver calls of one pass, uninstrumented
    hotspots: Annotated[tuple[Hotspot, ...], Field(max_length=5_000)]
    phases: Annotated[tuple[PhaseTime, ...], Field(max_length=1_000)]
    method: Prose  # how times were taken and attributed
    coverage: Number  # share of the script's own driver-call time that could be replayed
    partial: bool = False
