"""Device time of module families: every kernel belongs to the innermost module call during which the host launched it."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from llm4llm.harness.windows import Chosen, Windows

_MARK = "llm4llm:"
_LAUNCHES = ("cu", "hip")  # cudaLaunchKernel, cuLaunchKernelEx, cudaMemcpyAsync, …
_TEARDOWN = "TEARDOWN_CUPTI"


@dataclass
class Busy:
    """Milliseconds in which the device worked for a family: everything inside included, and without what watched calls inside launched."""

    inclusive_ms: float = 0.0
    self_ms: float = 0.0
    kernels: int = 0


class Session:
    """Windows of several replays under one run of torch's profiler; read them once it is over."""

    def __init__(self) -> None:
        self.windows: list[dict[int, Busy]] = []
        self.lost_ms = 0.0  # of kernels that no module call was found for

    def opened(self, found: dict[int, Busy]) -> str:
        """The prefix of the marks of a new window, whose times go to `found`."""
        self.windows.append(found)
        return f"{_MARK}{len(self.windows) - 1}:"

    def read(self, events: list[Any]) -> None:
        self.lost_ms = attribute(events, self.windows)


@contextmanager
def session() -> Iterator[Session]:
    """One profiler run. The device tracer is taken down with it and must not start twice in a process.

    Left in place it makes every later launch slower (H200, torch 2.11: 7.6 us before, 10.6 us after), and torch takes it down only once.
    """
    started, before = Session(), os.environ.get(_TEARDOWN)
    os.environ[_TEARDOWN] = "1"
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            yield started
            torch.cuda.synchronize()
        inner = profiler.profiler
        if inner is not None and inner.kineto_results is not None:
            started.read(inner.kineto_results.events())
        torch.cuda.synchronize()
    finally:
        if before is None:
            os.environ.pop(_TEARDOWN, None)
        else:
            os.environ[_TEARDOWN] = before


class DeviceClock(Windows[Busy]):
    """Marks the module calls of the chosen windows; `seen` is filled when the session ends."""

    def __init__(self, family_of: Mapping[str, int], chosen: Chosen, within: Session) -> None:
        super().__init__(chosen)
        self._family_of = family_of
        self._session = within
        self._prefix = ""

    def window(self, run: Callable[[], Any]) -> Any:
        self._prefix = self._session.opened(self.found)
        return run()

    def inside(self, path: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with record_function(f"{self._prefix}{self._family_of[path]}"):
            return original(*args, **kwargs)


def attribute(events: list[Any], windows: list[dict[int, Busy]]) -> float:
    """Add the device time of raw profiler events to the windows, by family; what lies in none of them is returned, in milliseconds.

    Kernels name their launch by correlation id; the launch falls into the module calls that were open on the host at that time.
    """
    ranges: list[tuple[int, int, int, int]] = []  # start, end, window, family
    launches: dict[int, int] = {}
    kernels: list[tuple[int, float]] = []
    for event in events:
        name = event.name()
        if event.device_type() == DeviceType.CPU:
            if name.startswith(_MARK):
                window, family = name[len(_MARK) :].split(":")
                ranges.append((event.start_ns(), event.start_ns() + event.duration_ns(), int(window), int(family)))
            elif name.startswith(_LAUNCHES):
                launches[event.correlation_id()] = event.start_ns()
        elif not name.startswith(_MARK) and not event.is_user_annotation():
            kernels.append((event.correlation_id(), event.duration_ns() / 1e6))
    placed = sorted((launches[correlation], spent) for correlation, spent in kernels if correlation in launches)
    lost = sum(spent for correlation, spent in kernels if correlation not in launches)
    ranges.sort(key=lambda item: (item[0], -item[1]))
    opened: list[tuple[int, int, int, int]] = []
    upcoming = 0
    for moment, spent in placed:
        while upcoming < len(ranges) and ranges[upcoming][0] <= moment:
            opened = [item for item in opened if item[1] > ranges[upcoming][0]]
            opened.append(ranges[upcoming])
            upcoming += 1
        opened = [item for item in opened if item[1] >= moment]
        if not opened:
            lost += spent
            continue
        window, innermost = windows[opened[-1][2]], opened[-1][3]
        busy = window.setdefault(innermost, Busy())
        busy.self_ms += spent
        busy.kernels += 1
        for family in {item[3] for item in opened}:
            window.setdefault(family, Busy()).inclusive_ms += spent
    return lost
