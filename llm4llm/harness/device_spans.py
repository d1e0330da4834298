"""Device time of module families: every kernel belongs to the innermost module call during which the host launched it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from llm4llm.harness.windows import Chosen, Windows

_MARK = "llm4llm:"
_LAUNCHES = ("cu", "hip")  # cudaLaunchKernel, cuLaunchKernelEx, cudaMemcpyAsync, …


@dataclass
class Busy:
    """Milliseconds in which the device worked for a family: everything inside included, and without what watched calls inside launched."""

    inclusive_ms: float = 0.0
    self_ms: float = 0.0
    kernels: int = 0


class DeviceClock(Windows[Busy]):
    """Device time per family within the chosen windows. `unattributed_ms` is kernel time that no module call could be found for."""

    def __init__(self, family_of: Mapping[str, int], chosen: Chosen) -> None:
        super().__init__(chosen)
        self.unattributed_ms = 0.0
        self._family_of = family_of

    def window(self, run: Callable[[], Any]) -> Any:
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            result = run()
            torch.cuda.synchronize()
        inner = profiler.profiler
        if inner is not None and inner.kineto_results is not None:
            self.unattributed_ms += attribute(inner.kineto_results.events(), self.found)
        return result

    def inside(self, path: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with record_function(f"{_MARK}{self._family_of[path]}"):
            return original(*args, **kwargs)


def attribute(events: list[Any], found: dict[int, Busy]) -> float:
    """Add the device time of raw profiler events to `found` by family; the rest, in milliseconds, is returned.

    Kernels name their launch by correlation id; the launch falls into the module calls that were open on the host at that time.
    """
    ranges: list[tuple[int, int, int]] = []
    launches: dict[int, int] = {}
    kernels: list[tuple[int, float]] = []
    for event in events:
        name = event.name()
        if event.device_type() == DeviceType.CPU:
            if name.startswith(_MARK):
                ranges.append((event.start_ns(), event.start_ns() + event.duration_ns(), int(name[len(_MARK) :])))
            elif name.startswith(_LAUNCHES):
                launches[event.correlation_id()] = event.start_ns()
        elif not name.startswith(_MARK) and not event.is_user_annotation():
            kernels.append((event.correlation_id(), event.duration_ns() / 1e6))
    placed = sorted((launches[correlation], spent) for correlation, spent in kernels if correlation in launches)
    lost = sum(spent for correlation, spent in kernels if correlation not in launches)
    ranges.sort(key=lambda item: (item[0], -item[1]))
    opened: list[tuple[int, int]] = []  # (end, family)
    upcoming = 0
    for moment, spent in placed:
        while upcoming < len(ranges) and ranges[upcoming][0] <= moment:
            start, end, family = ranges[upcoming]
            opened = [item for item in opened if item[0] > start]
            opened.append((end, family))
            upcoming += 1
        opened = [item for item in opened if item[0] >= moment]
        if not opened:
            lost += spent
            continue
        busy = found.setdefault(opened[-1][1], Busy())
        busy.self_ms += spent
        busy.kernels += 1
        for family in {item[1] for item in opened}:
            found.setdefault(family, Busy()).inclusive_ms += spent
    return lost
