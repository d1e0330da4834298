"""Host time of module families: inclusive and self, with the measuring's own cost taken out."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from llm4llm.harness.instrument import Instrument
from llm4llm.harness.phases import Phase

Key = tuple[int, Phase]  # index of the family, phase
EntryKey = tuple[str, Phase]  # path of a module that the driver enters directly, phase


@dataclass
class Span:
    """Seconds of one family in one phase. A call inside another call of the same family counts, but its time is not added twice."""

    calls: int = 0
    inclusive_s: float = 0.0
    self_s: float = 0.0
    below: int = 0  # watched calls inside, at any depth: each one's cost lies in `inclusive_s`
    children: int = 0  # watched calls directly inside: each one's cost lies in `self_s`
    paths: set[str] = field(default_factory=set)


@dataclass
class Entry:
    """What one module that the driver enters directly (the root's forward, an encoder) took in one phase."""

    calls: int = 0
    host_s: float = 0.0
    wall_s: float = 0.0  # up to the device's end of work
    below: int = 0


class _Open(threading.local):
    def __init__(self) -> None:
        self.stack: list[list[Any]] = []  # [seconds of direct children, number of direct children, number of calls below]
        self.families: dict[Key, int] = {}


class HostClock:
    """A watch that adds up host time per family and phase. `fence` waits for the device; it is called around driver-level entries only."""

    def __init__(self, family_of: Mapping[str, int], fence: Callable[[], None] | None = None) -> None:
        self.spans: dict[Key, Span] = {}
        self.entries: dict[EntryKey, Entry] = {}
        self._family_of = family_of
        self._fence = fence
        self._open = _Open()

    def __call__(
        self, path: str, module: nn.Module, phase: Phase, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        opened = self._open
        stack, families = opened.stack, opened.families
        if not stack and self._fence is not None:
            self._fence()
        key = (self._family_of[path], phase)
        depth = families.get(key, 0)
        families[key] = depth + 1
        frame: list[Any] = [0.0, 0, 0]
        stack.append(frame)
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent = time.perf_counter() - start
            stack.pop()
            families[key] = depth
            span = self.spans.get(key)
            if span is None:
                span = self.spans[key] = Span()
            span.calls += 1
            span.self_s += spent - frame[0]
            span.children += frame[1]
            if not depth:
                span.inclusive_s += spent
                span.below += frame[2]
            if stack:
                outer = stack[-1]
                outer[0] += spent
                outer[1] += 1
                outer[2] += frame[2] + 1
            else:
                self._entered(path, phase, start, spent, frame[2])
            span.paths.add(path)

    def _entered(self, path: str, phase: Phase, start: float, spent: float, below: int) -> None:
        if self._fence is not None:
            self._fence()
        entry = self.entries.setdefault((path, phase), Entry())
        entry.calls += 1
        entry.host_s += spent
        entry.wall_s += time.perf_counter() - start
        entry.below += below


class _Nothing(nn.Module):
    def forward(self, value: int) -> int:
        return value


def cost_of_watching(rounds: int = 3000) -> float:
    """Seconds that one watched call adds to its caller: a module that does nothing, watched and not; best of five."""
    tree = nn.Module()
    tree.leaf = _Nothing()
    leaf = tree.leaf

    def each() -> float:
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(rounds):
                leaf(1)
            best = min(best, (time.perf_counter() - start) / rounds)
        return best

    plain = each()
    clock = HostClock({"": 0, "leaf": 1})
    instrument = Instrument(tree, clock, None)
    try:
        instrument.install()
        watched = clock("", tree, "forward", lambda: _inside(instrument, each), (), {})
    finally:
        instrument.remove()
    return max(0.0, watched - plain)


def _inside(instrument: Instrument, measure: Callable[[], float]) -> float:
    with instrument.pretending("forward"):
        return measure()
