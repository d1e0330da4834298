"""Where the workload's time goes, by module family and phase; and which seed files fit which hotspot."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from llm4llm.harness import bounds, values
from llm4llm.harness.ambient import Randomness
from llm4llm.harness.attribution import BUSY, Look, Row, attributed
from llm4llm.harness.device_spans import DeviceClock, session
from llm4llm.harness.families import Family, all_families, locate
from llm4llm.harness.instrument import Refusal, Watch, instrumented, refusal
from llm4llm.harness.phases import Phase
from llm4llm.harness.replay import replay, timed
from llm4llm.harness.spans import HostClock, cost_of_watching
from llm4llm.harness.tally import Tally
from llm4llm.harness.windows import Enough, choose
from llm4llm.harness.wording import counted
from llm4llm.harness.workload import DriverEntry, Workload
from llm4llm.runtime.candidate import load_candidate

Emit = Callable[[dict[str, Any]], None]

DECODE_WINDOWS = 3
WATCHED_REPLAYS = 3
MAX_HOTSPOTS = 2_000
MAX_PATH_CHARACTERS = 5 << 20  # of all instances of all hotspots; a profile has to fit into one line of the channel
GREATEST_SHARE = 0.9999  # so that a ceiling stays a number
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass
class _Measured:
    """A driver call with its uninstrumented times."""

    driver: DriverEntry
    samples_ms: list[float] = field(default_factory=list)

    @property
    def plain_ms(self) -> float:
        """The quickest repetition, as it is held against the quickest watched one."""
        return min(self.samples_ms)


class _Profile:
    def __init__(self, workload: Workload, limit_s: float, emit: Emit) -> None:
        self.workload = workload
        self.emit = emit
        self.deadline = time.perf_counter() + limit_s
        self.limit_s = limit_s
        self.cuda = workload.uses_cuda()
        self.families = all_families(workload)
        self.cost_s = cost_of_watching()
        self.rows: dict[tuple[str, int, Phase], Row] = {}
        self.refusals: dict[str, dict[str, Refusal]] = {}
        self.notes: list[str] = []
        self.partial = False
        self.watched_ms = self.watched_plain_ms = 0.0

    def left_s(self) -> float:
        return self.deadline - time.perf_counter()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.emit({"note": text})

    def plain(self, repeats: int) -> list[_Measured]:
        """Uninstrumented times of the driver calls, the most expensive ones first; those that no time was left for are left out."""
        drivers = sorted(self.workload.replayable(), key=lambda driver: -_script_ms(driver))
        measured: list[_Measured] = []
        for driver in drivers:
            if measured and self.left_s() < 0.6 * self.limit_s:
                self.partial = True
                self.note(
                    f"not profiled, because no time was left: {len(drivers) - len(measured)} of {counted(len(drivers), 'driver call')}"
                )
                break
            try:
                replay(driver)  # caches, allocators and lazily built parts are ready after this
                measured.append(_Measured(driver, [timed(driver)[0]]))
            except Exception as error:
                self.note(f"{driver.id} ({driver.method}) failed when it was replayed ({type(error).__name__}: {error}) and is left out")
        for _ in range(repeats - 1):
            # every later pass must leave time for the instrumented replays
            if self.left_s() < 0.5 * self.limit_s:
                break
            for one in measured:
                one.samples_ms.append(timed(one.driver)[0])
        return measured

    def look(self, one: _Measured) -> Look:
        """Host times and counts of work of one driver call."""
        driver, family_of = one.driver, self._family_of(one.driver)
        self._watched(driver, HostClock(family_of))  # learns whether the root's own forward runs at all, and warms the wrappers
        watched_ms, clock = self._fastest(driver, family_of)
        self.watched_ms += watched_ms * driver.count
        self.watched_plain_ms += one.plain_ms * driver.count
        look = Look(clock)
        tally = Tally(family_of, choose(clock.entries, 1))
        if self.left_s() > 0.1 * self.limit_s and self._closely(driver, tally, "counts of operations"):
            look.work = tally.seen
        return look

    def _fastest(self, driver: DriverEntry, family_of: dict[str, int]) -> tuple[float, HostClock]:
        """The quickest of up to three watched replays: other work on the machine only ever adds time."""
        tries: list[tuple[float, HostClock]] = []
        while not tries or (len(tries) < WATCHED_REPLAYS and self.left_s() > 0.3 * self.limit_s):
            clock = HostClock(family_of, torch.cuda.synchronize if self.cuda else None)
            tries.append((self._watched(driver, clock), clock))
        return min(tries, key=lambda one: one[0])

    def look_at_device(self, looks: list[tuple[_Measured, Look]]) -> None:
        """Device times of all driver calls, in one run of torch's profiler."""
        try:
            with session() as within:
                for one, look in looks:
                    clock = DeviceClock(self._family_of(one.driver), choose(look.host.entries, DECODE_WINDOWS), within)
                    if self._closely(one.driver, clock, "device times"):
                        look.device = clock.seen
        except Exception as error:  # the script's own profiler still runs, or the driver forbids tracing
            self.note(f"device times could not be taken ({type(error).__name__}: {error})")
            for _, look in looks:
                look.device = None

    def add(self, one: _Measured, look: Look) -> None:
        """Give the driver call's time to families and phases."""
        root, found = one.driver.root.id, self.families[one.driver.root.id]
        index_of = {id(family): index for index, family in enumerate(found)}
        for row in attributed(found, look, one.plain_ms, self.cost_s):
            key = (root, index_of[id(row.family)], row.phase)
            self.rows.setdefault(key, Row(row.family, row.phase)).add(row, max(1, one.driver.count))

    def _family_of(self, driver: DriverEntry) -> dict[str, int]:
        return {path: index for index, family in enumerate(self.families[driver.root.id]) for path in family.paths}

    def _watched(self, driver: DriverEntry, watch: Watch) -> float:
        with instrumented(driver.root, watch, driver=driver) as instrument:
            self.refusals.setdefault(driver.root.id, {}).update(instrument.refusals)
            return timed(driver)[0]

    def _closely(self, driver: DriverEntry, watch: Watch, what: str) -> bool:
        try:
            self._watched(driver, watch)
        except Enough:
            return True
        except Exception as error:  # a mode that one of the operations does not support
            self.note(f"{what} of {driver.id} could not be taken ({type(error).__name__}: {error})")
            return False
        return True


def _script_ms(driver: DriverEntry) -> float:
    """What all calls of this driver took in the script; its stored durations stand for the rest."""
    return driver.count * sum(driver.wall_ms) / len(driver.wall_ms) if driver.wall_ms else 0.0


def profile(workload: Workload, payload: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """The fields of schema.ProfileReport. Payload: {"repeats": plain passes, "time_limit_s": seconds}."""
    work = _Profile(workload, float(payload.get("time_limit_s", 60.0)), emit)
    measured = work.plain(int(payload.get("repeats", 5)))
    looks: list[tuple[_Measured, Look]] = []
    for index, one in enumerate(measured):
        if index and work.left_s() <= 0:
            work.partial = True
            work.note(f"timed but not broken down, because no time was left: {counted(len(measured) - index, 'driver call')}")
            break
        looks.append((one, work.look(one)))
    if work.cuda and looks:
        work.look_at_device(looks)
    for one, look in looks:
        work.add(one, look)
    passes = min((len(one.samples_ms) for one in measured), default=0)
    samples = [sum(one.samples_ms[index] * max(1, one.driver.count) for one in measured) for index in range(passes)]
    total_ms = sum(row.self_part_ms for row in work.rows.values())
    all_ms = sum(_script_ms(driver) for driver in workload.drivers)
    covered = sum(_script_ms(one.driver) for one in measured)
    return {
        "end_to_end": {"samples_ms": samples, "method": _END_TO_END, "warmup": 1},
        "hotspots": _hotspots(work, total_ms),
        "phases": _phase_times(work),
        "method": _method(work, measured),
        "coverage": covered / all_ms if all_ms > 0 else float(bool(measured)),
        "partial": work.partial or workload.partial,
    }


_END_TO_END = "each replayable driver call repeated alone with fresh copies of its inputs, times its number of calls in the script, summed"


def _hotspots(work: _Profile, total_ms: float) -> list[dict[str, Any]]:
    on = bounds.machine(work.cuda)
    spots = [_hotspot(work, root, row, total_ms, on) for (root, _, _), row in work.rows.items()]
    spots += _silent(work)
    contained = {item["id"] for item in spots if item.pop("container")}
    spots.sort(key=lambda spot: (not spot["calls"], spot["id"] in contained, -spot["share"], spot["id"]))
    if len(spots) > MAX_HOTSPOTS:
        work.note(f"left out as the smallest: {counted(len(spots) - MAX_HOTSPOTS, 'hotspot')}")
    return _told(spots[:MAX_HOTSPOTS])


def _told(spots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The hotspots with as many instances as can be told; one that has more becomes no task."""
    left = MAX_PATH_CHARACTERS
    for spot in spots:
        size = sum(len(path) + 4 for path in spot["paths"])
        if size <= left:
            left -= size
            continue
        text = f"{spot['module_class']} has {counted(len(spot['paths']), 'instance')}, which is more than can be told apart"
        spot.update(paths=spot["paths"][:1], refusal=Refusal("many_instances", text)._asdict())
    return spots


def _hotspot(work: _Profile, root: str, row: Row, total_ms: float, on: bounds.Machine) -> dict[str, Any]:
    share = min(row.part_ms / total_ms, GREATEST_SHARE) if total_ms > 0 else 0.0
    family = row.family
    reason = _objection(work.refusals.get(root, {}), family, row)
    return {
        "id": family.hotspot_id(row.phase),
        "root": root,
        "module_class": family.module_class,
        "phase": row.phase,
        "family": family.signature,
        "paths": [path for path in family.paths if path in row.paths] or list(family.paths),
        "calls": row.calls,
        "host_ms": row.host_ms,
        "self_host_ms": row.self_host_ms,
        "device_ms": row.device_ms,
        "self_device_ms": row.self_device_ms,
        "share": share,
        "self_share": row.self_part_ms / total_ms if total_ms > 0 else 0.0,
        "bound": bounds.bound(row, on),
        "ceiling": 1.0 / (1.0 - share),
        "refusal": reason._asdict() if reason else None,
        "container": isinstance(family.module, _CONTAINERS),
    }


def _objection(refusals: dict[str, Refusal], family: Family, row: Row) -> Refusal | None:
    refused = next((refusals[path] for path in family.paths if path in refusals), None) or refusal(family.module)
    if refused is not None:
        return refused
    if not row.calls:
        return Refusal(
            "not_entered", f"the driver never enters the forward of {family.module_class} itself: its time is the driver's own work"
        )
    if family.module.training:
        return Refusal("training_mode", f"{family.module_class} is in training mode: call model.eval() before inference")
    return None


def _silent(work: _Profile) -> list[dict[str, Any]]:
    """Modules with weights that were never called although what holds them was: their weights are used by somebody else."""
    spots = []
    for root in work.workload.roots:
        found, rows = work.families[root.id], [row for (name, _, _), row in work.rows.items() if name == root.id]
        called: dict[str, Phase] = {}
        for row in rows:
            for path in row.paths:
                called.setdefault(path, row.phase)
        hidden = tuple(f"{path}." if path else "" for path in work.refusals.get(root.id, {}))
        for family in found:
            first = family.paths[0]
            parent = first.rpartition(".")[0]
            used = any(path == member or path.startswith(f"{member}.") for member in family.paths for path in called)
            watched = parent in called and not (hidden and f"{first}.".startswith(hidden))
            if first and watched and not used and next(family.module.parameters(), None) is not None:
                row = Row(family, called[parent])
                spot = _hotspot(work, root.id, row, 0.0, bounds.Machine(work.cuda))
                text = f"{family.module_class} is never called: its weights are used by {parent or 'the root'}, which holds its time"
                spots.append({**spot, "refusal": Refusal("never_called", text)._asdict()})
    return spots


def _phase_times(work: _Profile) -> list[dict[str, Any]]:
    times: dict[tuple[str, Phase], dict[str, Any]] = {}
    for (root, _, phase), row in work.rows.items():
        entry = times.setdefault((root, phase), {"phase": phase, "root": root, "host_ms": 0.0, "device_ms": None, "root_calls": 0})
        entry["host_ms"] += row.self_host_ms
        if row.self_device_ms is not None:
            entry["device_ms"] = (entry["device_ms"] or 0.0) + row.self_device_ms
        if "" in row.family.paths:
            entry["root_calls"] += row.calls
    return list(times.values())


def _method(work: _Profile, measured: list[_Measured]) -> str:
    effect = work.watched_ms / work.watched_plain_ms if work.watched_plain_ms else 1.0
    parts = [
        f"Replays of {counted(len(measured), 'driver call')}, each after one warm-up. "
        "Host times from an instance-level forward on every module; "
        f"watching one call costs {work.cost_s * 1e6:.2f} us, which is subtracted; watched replays took {effect:.3f} times the plain ones."
    ]
    if work.cuda:
        parts.append(
            f"Device times from kernels launched during a module call in the first prefill and the first {DECODE_WINDOWS} decode forwards, "
            f"scaled by calls. A phase in which the device is busy for less than {BUSY:.0%} of the wall time is divided by host time, else "
            "by device time."
        )
    parts.append(
        "Self parts of a phase are scaled to its wall time; what the driver does outside the model's modules counts as the root's own. "
        "Shares are of the replayed time, so self shares sum to 1."
    )
    hidden = [f"{path or 'root'} ({reason.code})" for found in work.refusals.values() for path, reason in found.items()]
    if hidden:
        parts.append(f"Not visible, inside their callers' time: {', '.join(sorted(hidden)[:8])}.")
    return " ".join([*parts, bounds.METHOD, *work.notes])


def match(workload: Workload, payload: dict[str, Any]) -> dict[str, Any]:
    """{"matches": {hotspot id: [seed names]}, "errors": {seed name: text}}: which seeds say that they fit a hotspot's module.

    Payload: {"hotspots": [ids], "seeds": [{"name", "path"}]}. The modules and all random states are as before afterwards.
    """
    places = locate(workload, payload["hotspots"])
    matches: dict[str, list[str]] = {name: [] for name in payload["hotspots"]}
    errors: dict[str, str] = {name: "no such hotspot" for name in payload["hotspots"] if name not in places}
    for seed in payload["seeds"]:
        try:
            asked = load_candidate(Path(seed["path"])).matches
        except Exception as error:
            errors[seed["name"]] = f"can't be loaded ({type(error).__name__}: {error})"
            continue
        for name, place in places.items():
            try:
                if _matches(asked, place.family.module):
                    matches[name].append(seed["name"])
            except Exception as error:
                errors[seed["name"]] = f"matches() failed on {place.family.module_class} ({type(error).__name__}: {error})"
    return {"matches": matches, "errors": errors}


def _matches(asked: Callable[[nn.Module], Any], module: nn.Module) -> bool:
    before, live = Randomness.now(), values.kept_by(module)
    try:
        with torch.no_grad():
            return bool(asked(module))
    finally:
        before.restore()
        values.restore(module, live)
