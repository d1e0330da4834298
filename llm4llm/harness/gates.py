"""The gates that a candidate's answers go through, in order. The first fault ends the judgement."""

import copy
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from llm4llm.harness import inputs, shapes
from llm4llm.harness.bench import Bench
from llm4llm.harness.calls import Call, reweight
from llm4llm.harness.compare import Fault, compare
from llm4llm.harness.oracle import Original, Truth
from llm4llm.harness.portrait import Leaf, same_bits
from llm4llm.harness.subject import Answered, Gone, Subject
from llm4llm.harness.values import tensors
from llm4llm.harness.wording import counted

LONG_RUN = 160  # calls on one instance: what changes after a warm-up shows by then
LONG_RUN_CHECKS = 16
LONG_RUN_CALLS = 8
PER_CHANGE = 3
SHAPES = 14
REWEIGHT = 1.5
# every gate gets this many calls even when the time for gates is used up
LEAST = 3
# interpreted kernels are a thousand times slower: fewer calls, and no large ones more than once
PER_CHANGE_INTERPRETED, SHAPES_INTERPRETED = 2, 8
_INTERPRETED_FACTOR = 4.0


class Stop(Exception):
    """The judgement ends here without a pass."""

    def __init__(self, outcome: str, kind: str, reason: str, details: Iterable[str] = ()) -> None:
        super().__init__(reason)
        self.outcome, self.kind, self.reason, self.details = outcome, kind, reason, tuple(details)


@dataclass
class Record:
    """What the gates have seen so far of one configuration."""

    gates: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    proven: list[Call] = field(default_factory=list)
    declined: int = 0
    worst: float = 0.0
    worst_call: str = ""


class Gates:
    """One candidate process with one configuration in front of one bench."""

    def __init__(self, bench: Bench, subject: Subject, record: Record, *, interpreted: bool) -> None:
        self.bench, self.subject, self.record = bench, subject, record
        self._timeout_s = bench.options.call_timeout_s * (_INTERPRETED_FACTOR if interpreted else 1.0)
        self._interpreted = interpreted
        self._per_change = PER_CHANGE_INTERPRETED if interpreted else PER_CHANGE
        self._names: dict[int, str] = {id(call): f"c{index}" for index, call in enumerate(bench.calls)}
        self._alive: list[Call] = list(bench.calls)
        self._deadline = 0.0
        self._taken: dict[str, bool] = {}  # what accepts said of each call since the last prepare

    # ---- asking -----------------------------------------------------------------------------------------------------

    def ask(self, op: str, payload: dict[str, Any], where: str, blobs: list[bytes] | None = None) -> Answered:
        """One request; raises Stop for a death, an error or a violation."""
        try:
            answered = self.subject.ask(op, payload, self._timeout_s, blobs)
        except Gone as gone:
            kind = {"timeout": "timeout", "oom": "oom"}.get(gone.kind, "runtime")
            raise Stop("failed", kind, f"the candidate's process ended in {where}: {gone}") from gone
        for one in answered.violations:
            raise Stop("rejected", one["rule"], f"{one['detail']} ({where})")
        if answered.error is not None:
            raise failure(answered.error, where)
        return answered

    def load(self, calls: list[Call]) -> None:
        """Send made calls to the candidate."""
        fresh = {f"m{len(self._names) + index}": call for index, call in enumerate(calls) if id(call) not in self._names}
        if fresh:
            self.ask("load", {}, "loading inputs", [self.bench.packed(fresh)])
            self._names.update({id(call): name for name, call in fresh.items()})
            self._alive.extend(fresh.values())

    def prepare(self, config: dict[str, Any]) -> None:
        self._taken.clear()
        self.ask("prepare", {"config": config}, f"prepare{_with(config)}")

    # ---- one call ---------------------------------------------------------------------------------------------------

    def check(self, call: Call, *, refill: bool = False, original: Original | None = None, poison: bool = True) -> Answered | None:
        """Serve one call and compare everything; None if it was declined. Raises Stop for any fault."""
        payload = {"name": self._names[id(call)], "refill": refill, "poison": poison}
        answered = self.ask("call", payload, f"{call.origin} ({call.shapes()})")
        taken = not answered.facts["declined"]
        self._take(self._names[id(call)], taken, call.origin)
        if not taken:
            self.record.declined += 1
            return None
        truth = self.bench.original.truth(call) if original is None else original.truth(call, remember=False)
        try:
            tree, listed = answered.picture()
        except Gone as gone:
            raise Stop("failed", "runtime", f"the candidate's answer can't be read: {gone}") from gone
        fault, excess = self._fault(answered, tree, listed, truth, call)
        if call.regime != "strides" and excess > self.record.worst:
            self.record.worst, self.record.worst_call = excess, call.origin
        if fault is not None:
            details = [f"in {call.origin}", f"inputs: {call.shapes()}", *fault.details, f"oracle: {truth.oracle}"]
            raise Stop("incorrect", fault.kind, fault.reason + f" ({call.origin})", details)
        if original is None and call.regime != "strides":
            self.record.proven.append(call)
        return answered

    def _take(self, name: str, taken: bool, where: str) -> None:
        """accepts is asked of the same call again and again; what it says may depend on that call alone."""
        if self._taken.setdefault(name, taken) is not taken:
            text = f"accepts answers differently for {where} than before, with the same inputs; it may depend on the call alone"
            raise Stop("rejected", "inconsistent_accepts", text)

    def _fault(self, answered: Answered, tree: Any, listed: list[Leaf], truth: Truth, call: Call) -> tuple[Fault | None, float]:
        extra = {tuple(pair) for pair in answered.facts["aliases"]} - truth.aliases
        if extra:
            result, other = sorted(extra)[0]
            return Fault("alias", f"{result} shares memory with {other}; the original's does not"), 0.0
        written = {pair for pair in truth.aliases if pair[1] not in truth.unchanged and not pair[1].startswith("weight ")}
        lost = written - {tuple(pair) for pair in answered.facts["aliases"]}
        if lost:
            result, other = sorted(lost)[0]
            return Fault("alias", f"{result} is a copy; the original gives back {other} itself, which it changed"), 0.0
        others = set(answered.facts["rebound"]) - truth.rebound
        if others:
            return Fault("effect", f"{sorted(others)[0]} was replaced by another tensor; the original keeps the one that was there"), 0.0
        if bool(answered.facts["draws"]) != truth.draws:
            word = "draws random numbers" if answered.facts["draws"] else "draws no random numbers"
            return Fault("effect", f"the candidate {word}, unlike the original"), 0.0
        return compare(tree, listed, truth, self.bench.usual_for(call))

    # ---- gates ------------------------------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """Time for the gates with fresh inputs starts now."""
        self._deadline = time.monotonic() + self.bench.options.gate_seconds

    def _late(self, done: int) -> bool:
        return done >= LEAST and time.monotonic() > self._deadline

    def captured(self) -> None:
        """Every captured call, small ones first, so that the smallest failing shape is the one reported."""
        accepted = sum(self.check(call) is not None for call in sorted(self.bench.calls, key=Call.elements))
        self._gate("captured")
        if not accepted:
            text = f"accepts declined all {len(self.bench.calls)} captured calls, so the candidate would never run"
            raise Stop("rejected", "never_accepts", text)

    def determinism(self) -> None:
        """The same call twice gives the same bits, unless the original's own bits differ."""
        call = max(self.bench.calls, key=Call.elements)
        first, second = self.check(call), self.check(call)
        if first is None or second is None:
            return
        ours = [self.bench.original.own(call)[0]["result"] for _ in range(2)]
        from_original = all(map(same_bits, tensors(ours[0]), tensors(ours[1])))
        pairs = zip(first.picture()[1], second.picture()[1], strict=True)
        alike = all(one.values is None or two.values is None or same_bits(one.values, two.values) for one, two in pairs)
        if from_original and not alike:
            raise Stop("rejected", "nondeterministic", f"two runs of {call.origin} give different results; the original gives the same")
        self._gate("determinism")

    def fresh_values(self) -> None:
        """Other values through captured shapes, each also refilled into the memory of the call before."""
        made = inputs.with_other_values(self.bench.calls, self.bench.generator("values"), self._per_change)
        done = 0
        for call in made:
            if self._late(done):
                self.record.notes.append("fresh values were cut short by the time limit")
                break
            if self.bench.usable(call):
                self.load([call])
                self.check(call)
                done += 1
        for call in self._other_meanings():
            if self.bench.runs_on_cpu(call) and self.bench.usable(call):
                self.load([call])
                self.check(call)
        self._refilled()
        self._gate("values")

    def _other_meanings(self) -> Iterator[Call]:
        """Calls with other masks, ids and positions."""
        calls, source = self.bench.calls, self.bench.generator("masks and ids")
        yield from inputs.with_other_masks(calls, source)
        yield from inputs.with_other_ids(calls, self.bench.task.module, source)
        yield from inputs.with_later_positions(calls)

    def _refilled(self) -> None:
        """New values at the addresses of the call before: a result remembered by address shows."""
        change = inputs.changes(self.bench.generator("refill"))[0]
        for call in inputs.different([call for call in self.bench.calls if call.scale], self._per_change):
            other = call.changed(change.make, "refilled in place", "values")
            if self.bench.usable(other):
                self.load([other])
                self.check(call)
                self.check(other, refill=True)

    def fresh_shapes(self) -> None:
        """Sizes inside the recorded ranges that were not recorded."""
        source = self.bench.generator("shapes")
        done = 0
        for structure in self.bench.structures:
            for call in self._resized(structure, source):
                if self._late(done):
                    self.record.notes.append("fresh shapes were cut short by the time limit")
                    break
                if self.bench.usable(call):
                    self.load([call])
                    self.check(call)
                    done += 1
        self._gate("shapes")

    def _resized(self, structure: shapes.Structure, source: torch.Generator) -> list[Call]:
        change = inputs.changes(source)[0]
        made = []
        for sizes in shapes.unrecorded(structure, source, SHAPES_INTERPRETED if self._interpreted else SHAPES):
            try:
                call = shapes.resized(structure, sizes)
            except (ValueError, RuntimeError):
                self.bench.dropped += 1
                continue
            made.append(call.changed(change.make, "values drawn anew", "shapes") if call.scale else call)
        return sorted(made, key=Call.elements)

    def other_strides(self) -> None:
        """Another memory layout; a fault here only narrows the proven domain, since the guard lets in recorded layouts alone."""
        for call in inputs.different(self.bench.calls, 1):
            other = shapes.restrided(call)
            if other is None or not self.bench.usable(other):
                continue
            self.load([other])
            try:
                if self.check(other) is not None:
                    self.record.proven.append(other)
            except Stop as stop:
                if stop.outcome == "rejected" or stop.kind in ("timeout", "oom"):
                    raise
                self.record.notes.append(f"not proven for other strides: {stop.reason}")
        self._gate("strides")

    def other_weights(self, config: dict[str, Any]) -> None:
        """Weights changed in place and prepared again: a stale copy shows, and what was special about the recorded ones.

        Needs a module of its own, so it is prepared anew afterwards.
        """
        if not any(weight.is_floating_point() for weight in self.bench.task.module.parameters()):
            return
        heavier = Original(_reweighted(self.bench.original), self.bench.ambient)
        self._taken.clear()
        self.ask("reweight", {"factor": REWEIGHT}, "prepare after a change of weights")
        for call in inputs.different(self.bench.calls, 2):
            self.check(call, original=heavier)
        self.prepare(config)
        self._gate("weights")

    def long_run(self) -> None:
        """Many calls on one instance, checked at random places and at the end; all results of one call have to stay the same."""
        picked = sorted(self.bench.calls, key=Call.elements)[:LONG_RUN_CALLS]
        if self._interpreted:
            # the run is about its length, not about sizes
            picked = [call for call in picked if call.elements() <= 2 * picked[0].elements()]
        source = random.Random(f"{self.bench.options.seed}/long run")  # noqa: S311
        order = [source.choice(picked) for _ in range(LONG_RUN)]
        checks = sorted({*source.sample(range(LONG_RUN - 1), LONG_RUN_CHECKS), LONG_RUN - 1})
        done = 0
        for stop in checks:
            names = [self._names[id(call)] for call in order[done:stop]]
            answered = self.ask("run", {"names": names}, f"a run of {counted(stop, 'call')} on one instance") if names else None
            for name, taken in zip(names, answered.facts["taken"] if answered is not None else []):
                self._take(name, taken, f"a call of a run of {stop} on one instance")
            if answered is not None and answered.facts["differing"]:
                self._explain(answered.facts["differing"][0], stop)
            self.check(order[stop], poison=False)
            done = stop + 1
            if time.monotonic() > self._deadline + self.bench.options.gate_seconds and done < LONG_RUN:
                self.record.notes.append(f"the long run was cut to {counted(done, 'call')} by the time limit")
                break
        changed = self.ask("weights", {}, "the end of the run")
        assert not changed.violations
        self._gate("long_run")

    def _explain(self, name: str, count: int) -> None:
        """A call gave other bits than the first time: wrong, or at least not deterministic."""
        call = next(call for call in self._alive if self._names[id(call)] == name)
        for _ in range(3):
            self.check(call, poison=False)
        ours = [self.bench.original.own(call)[0]["result"] for _ in range(2)]
        if all(map(same_bits, tensors(ours[0]), tensors(ours[1]))):
            text = f"{call.origin} gives other bits within {counted(count, 'call')} than the first time, with the same inputs"
            raise Stop("incorrect", "long_run", text)

    def _gate(self, name: str) -> None:
        if name not in self.record.gates:
            self.record.gates.append(name)


def failure(error: dict[str, Any], where: str) -> Stop:
    """What the candidate raised, as an end of the judgement."""
    kind = {"exit": "exit", "resources": "resources"}.get(error["kind"], error["kind"])
    text = error["text"][0] if error["text"] else error["type"]
    at = f", {error['line']}" if error.get("line") else ""
    outcome = "rejected" if kind in ("exit", "resources") else "failed"
    return Stop(outcome, kind, f"{error['type']} in {where}{at}: {text}", error["text"][1:])


def _reweighted(original: Original) -> torch.nn.Module:
    module = copy.deepcopy(original.module)
    reweight(module, REWEIGHT)
    return module


def _with(config: dict[str, Any]) -> str:
    return f" with {config}" if config else ""
