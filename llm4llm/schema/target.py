"""One GPU's (or the CPU's) limits and timing rules."""

from typing import Literal

from llm4llm.schema.base import Frozen


class TargetProfile(Frozen):
    """A file in profiles/."""

    name: str
    device: Literal["cpu", "cuda"]
    capability: int | None = None  # 90 for sm_90
    matches: tuple[str, ...] = ()  # parts of device names that select it
    memory_bandwidth_bytes_s: float | None = None
    peak_flops: dict[str, float] = {}  # by dtype, dense
    shared_bytes_per_block: int | None = None
    registers_per_thread: int | None = None
    l2_bytes: int | None = None
    source: str
