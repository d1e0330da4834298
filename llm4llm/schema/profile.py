"""Where the workload's time goes."""

from typing import Literal

from llm4llm.schema.base import Frozen
from llm4llm.schema.measurement import Measurement
from llm4llm.schema.reason import Reason

Phase = Literal["prefill", "decode", "encode", "forward"]
Bound = Literal["memory", "compute", "launch", "host", "unknown"]


class Hotspot(Frozen):
    """A module family in a phase."""

    id: str
    root: str
    module_class: str
    phase: Phase
    family: str  # signature shared by its instances
    paths: tuple[str, ...]  # instances below the root that were called in this phase
    calls: int  # over the whole workload
    host_ms: float  # inclusive, per pass over the workload
    self_host_ms: float
    device_ms: float | None = None  # inclusive; None without a GPU
    self_device_ms: float | None = None
    share: float  # inclusive share of the workload's time, 0 to 1
    self_share: float
    bound: Bound
    ceiling: float  # end-to-end speedup if this hotspot took no time: 1 / (1 - share) (Amdahl)
    refusal: Reason | None = None  # why it can't become a task


class PhaseTime(Frozen):
    """Time of one phase per pass over the workload."""

    phase: Phase
    root: str
    host_ms: float
    device_ms: float | None = None
    root_calls: int


class ProfileReport(Frozen):
    """Hotspots ranked by share; shares of nested families overlap, self shares do not."""

    end_to_end: Measurement  # replayed driver calls of one pass, uninstrumented
    hotspots: tuple[Hotspot, ...]
    phases: tuple[PhaseTime, ...]
    method: str  # how times were taken and attributed
    coverage: float  # share of the script's own driver-call time that could be replayed
    partial: bool = False
