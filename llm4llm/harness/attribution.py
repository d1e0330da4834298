"""One driver call's time, given to module families: every millisecond of the call belongs to exactly one family and phase.

Per phase the host's clock decides where the host is the bottleneck, the device's where the device is: a family's part is its self time on
that clock, scaled so that the parts of a phase add up to the phase's wall time. What the driver itself does between the phases (sampling,
its loop) goes to the root.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from llm4llm.harness.device_spans import Busy
from llm4llm.harness.families import Family
from llm4llm.harness.phases import Phase
from llm4llm.harness.spans import EntryKey, HostClock, Key
from llm4llm.harness.tally import Work

T = TypeVar("T")
BUSY = 0.8  # below this share of a phase's wall time the device waits for the host


@dataclass
class Row:
    """A family in a phase. Times are milliseconds; `part` and `self_part` add up to the workload's time as told above."""

    family: Family
    phase: Phase
    calls: int = 0
    host_ms: float = 0.0
    self_host_ms: float = 0.0
    device_ms: float | None = None
    self_device_ms: float | None = None
    part_ms: float = 0.0
    self_part_ms: float = 0.0
    paths: set[str] = field(default_factory=set)
    work: Work | None = None

    def add(self, other: "Row", times: int) -> None:
        self.calls += other.calls * times
        self.host_ms += other.host_ms * times
        self.self_host_ms += other.self_host_ms * times
        self.part_ms += other.part_ms * times
        self.self_part_ms += other.self_part_ms * times
        self.paths |= other.paths
        if other.device_ms is not None and other.self_device_ms is not None:
            self.device_ms = (self.device_ms or 0.0) + other.device_ms * times
            self.self_device_ms = (self.self_device_ms or 0.0) + other.self_device_ms * times
        if other.work is not None:
            self.work = self.work or Work()
            self.work.add(other.work, times)


@dataclass
class Look:
    """What was seen in replays of one driver call. `device` and `work` hold one dict per window, None where nothing was measured."""

    host: HostClock
    device: Mapping[EntryKey, list[dict[int, Busy]]] | None = None
    work: Mapping[EntryKey, list[dict[int, Work]]] | None = None


@dataclass
class _Phase:
    host_ms: float = 0.0
    wall_ms: float = 0.0
    device_ms: float = 0.0
    root_calls: int = 0


def attributed(found: list[Family], look: Look, plain_ms: float, cost_s: float) -> list[Row]:
    """Rows of one driver call whose self parts sum to `plain_ms`, the call's time without instrumentation.

    `cost_s` is what one watched call adds to its caller.
    """
    phases = _phases(look, found, cost_s)
    rows = _rows(found, look, cost_s)
    for name, phase in phases.items():
        mine = [row for row in rows.values() if row.phase == name]
        waits = look.device is None or phase.device_ms < BUSY * phase.wall_ms
        own = [row.self_host_ms if waits else row.self_device_ms or 0.0 for row in mine]
        total = sum(own)
        factor = phase.wall_ms / total if total > 0 else 0.0
        for row, self_ms in zip(mine, own, strict=True):
            inclusive = row.host_ms if waits else row.device_ms or 0.0
            row.self_part_ms = self_ms * factor
            row.part_ms = min(inclusive * factor, phase.wall_ms)
    _settle(rows, phases, found, plain_ms)
    return list(rows.values())


def _phases(look: Look, found: list[Family], cost_s: float) -> dict[Phase, _Phase]:
    family_of = {path: index for index, family in enumerate(found) for path in family.paths}
    phases: dict[Phase, _Phase] = {}
    for (path, name), entry in look.host.entries.items():
        phase = phases.setdefault(name, _Phase())
        phase.host_ms += max(0.0, entry.host_s - cost_s * entry.below) * 1e3
        phase.wall_ms += max(0.0, entry.wall_s - cost_s * entry.below) * 1e3
        phase.root_calls += entry.calls if path == "" else 0
        windows = (look.device or {}).get((path, name), [])
        phase.device_ms += sum(window[family_of[path]].inclusive_ms for window in windows if family_of[path] in window) * (
            entry.calls / max(1, len(windows))
        )
    for phase in phases.values():
        # the wall includes the host's own slow-down under instrumentation, which is already out of host_ms
        phase.wall_ms = max(phase.host_ms, phase.device_ms, phase.wall_ms)
    return phases


def _rows(found: list[Family], look: Look, cost_s: float) -> dict[Key, Row]:
    rows: dict[Key, Row] = {}
    for (index, name), span in look.host.spans.items():
        row = rows[index, name] = Row(found[index], name, calls=span.calls, paths=set(span.paths))
        row.host_ms = max(0.0, span.inclusive_s - cost_s * span.below) * 1e3
        row.self_host_ms = max(0.0, span.self_s - cost_s * span.children) * 1e3
        if look.device is not None:
            row.device_ms = row.self_device_ms = 0.0
    for (path, name), entry in look.host.entries.items():
        busy = (look.device or {}).get((path, name), [])
        for index, window in _each(busy):
            row = rows[index, name]
            row.device_ms = (row.device_ms or 0.0) + window.inclusive_ms * entry.calls / len(busy)
            row.self_device_ms = (row.self_device_ms or 0.0) + window.self_ms * entry.calls / len(busy)
        counted = (look.work or {}).get((path, name), [])
        for index, work in _each(counted):
            row = rows[index, name]
            row.work = row.work or Work()
            row.work.add(work, entry.calls / len(counted))
    return rows


def _each(windows: list[dict[int, T]]) -> Iterable[tuple[int, T]]:
    return ((index, item) for window in windows for index, item in window.items())


def _settle(rows: dict[Key, Row], phases: dict[Phase, _Phase], found: list[Family], plain_ms: float) -> None:
    """Make the self parts sum to the plain time: shrink them if they exceed it, give what is left to the root."""
    total = sum(row.self_part_ms for row in rows.values())
    if total > plain_ms:
        for row in rows.values():
            row.self_part_ms *= plain_ms / total
            row.part_ms *= plain_ms / total
        return
    left = plain_ms - total
    names: list[Phase] = list(phases) or ["forward"]
    calls = {name: phases[name].root_calls if name in phases else 1 for name in names}
    weights = calls if sum(calls.values()) else {name: phases[name].wall_ms for name in names}
    everything = sum(weights.values()) or 1.0
    root = next(index for index, family in enumerate(found) if "" in family.paths)
    for name in names:
        if weights[name] or len(names) == 1:
            row = rows.setdefault((root, name), Row(found[root], name))
            row.self_part_ms += left * (weights[name] / everything if weights[name] else 1.0)
            row.part_ms += left * (weights[name] / everything if weights[name] else 1.0)
