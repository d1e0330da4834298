"""The judge's side of timing: how much to measure, what the candidate process reports, and a check of it by the judge's own clock."""

import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm4llm.harness import timing
from llm4llm.harness.bench import Bench
from llm4llm.harness.calls import Call
from llm4llm.harness.compare import compare
from llm4llm.harness.gates import Gates, Stop
from llm4llm.harness.values import restore

MOST_TURNS, LEAST_TURNS = 100, 7
RACE_TURNS = 9
KEPT = 3  # timed calls whose results are checked
_WINDOW_COUNT = 2000
_WINDOW_BYTES = 256 << 20
# The judge's own windows find inputs out of the cache and hold interpreter overhead, and other work on the machine distorts them.
_CLOCK_SLACK = 2.5
_CLOCK_TRIES = 6
_CLOCK_OVERHEAD_S = 5e-6  # per call: the loop and a cold start of its inputs
_WINDOW_S = 0.02
_ORIGINAL_ROUNDS = 5
_BUSY = 1.25  # load per core


@dataclass(frozen=True)
class Timed:
    """Paired times in milliseconds, weighted over the captured calls, one entry per turn."""

    baseline_ms: list[float]
    patched_ms: list[float]
    method: str
    speedup: float
    ci95: tuple[float, float] | None
    first_ms: float

    def facts(self) -> dict[str, Any]:
        return {
            "baseline_ms": self.baseline_ms,
            "patched_ms": self.patched_ms,
            "method": self.method,
            "ci95": self.ci95,
            "speedup": self.speedup,
        }


class Stopwatch:
    """Times one candidate in a process of its own. `gates` is that process's; `accepted` are captured calls that the candidate takes."""

    def __init__(self, bench: Bench, gates: Gates, accepted: Sequence[Call]) -> None:
        self._bench, self._gates = bench, gates
        self._calls = list(accepted)
        self._names = [f"c{bench.calls.index(call)}" for call in self._calls]
        self._weights = [float(bench.task.calls[call.source].get("weight", 1.0)) for call in self._calls]
        self._device = bench.device

    def race(self, configs: list[dict[str, Any]], seconds: float) -> tuple[dict[str, Any], list[str]]:
        """The fastest configuration by a few turns each, and a line on each."""
        best, lines, results = configs[0], [], []
        for config in configs:
            try:
                self._gates.prepare(config)
                turns, _ = self._plan(seconds / len(configs), RACE_TURNS)
                _, patched = self._samples(turns, f"race {config}")
            except Stop as stop:
                if stop.kind not in ("resources", "compile"):
                    raise
                lines.append(f"configuration {config}: left out, {stop.reason}")
                continue
            middle = statistics.median(timing.weighted(patched, self._weights))
            results.append((middle, config))
            lines.append(f"configuration {config}: {middle:.4g} ms")
        if results:
            best = min(results, key=lambda one: one[0])[1]
        return best, lines

    def measure(self, config: dict[str, Any], seconds: float) -> Timed:
        """Paired samples of one configuration, checked by results and by the judge's own clock."""
        self._gates.prepare(config)
        turns, first = self._plan(seconds, MOST_TURNS)
        baseline, patched = self._samples(turns, "timing")
        if self._inflated(baseline) is not None:
            # other work may have slowed that process down: it is asked once more
            baseline, patched = self._samples(turns, "timing once more")
            text = self._inflated(baseline)
            if text is not None:
                raise Stop("rejected", "clock", text)
        above, below = timing.weighted(baseline, self._weights), timing.weighted(patched, self._weights)
        if not all(one > 0 for one in (*above, *below)):
            raise Stop("rejected", "clock", "a timed call took no time at all")
        speedup, interval = timing.ratio_interval(above, below, self._bench.options.seed)
        self._check_clock(patched)
        self._note_load()
        method = timing.HOST_METHOD if self._device == "cpu" else timing.EVENT_METHOD
        method += "" if self._bench.threads is None else ", one thread (small tensors)"
        return Timed(above, below, method, speedup, interval, first)

    def _note_load(self) -> None:
        """Say so when other work competes for the cores: threads that wait for each other then take milliseconds."""
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if self._device == "cpu" and load > _BUSY * cores:
            self._gates.record.notes.append(f"the machine was busy (load {load:.1f} on {cores} cores): take these times as rough")

    def _plan(self, seconds: float, most: int) -> tuple[int, float]:
        """(number of turns that fit, milliseconds of the first call)."""
        started = time.perf_counter()
        answered = self._gates.ask("warm", {"names": self._names}, "the first timed calls")
        if answered.facts.get("declined"):
            raise Stop("rejected", "inconsistent_accepts", "accepts declines a call in one process that it takes in another")
        spent_s = time.perf_counter() - started
        per_turn_s = max(1e-4, spent_s / 3.0, 1e-3 * (sum(answered.facts["baseline_ms"]) + sum(answered.facts["patched_ms"])))
        return max(LEAST_TURNS, min(most, int(seconds / per_turn_s))), float(sum(answered.facts["first_ms"]))

    def _samples(self, turns: int, where: str) -> tuple[list[list[float]], list[list[float]]]:
        seed = self._bench.options.seed
        source = random.Random(f"{seed}/{where}")  # noqa: S311
        places = [(turn, call) for turn in range(turns) for call in range(len(self._calls))]
        keep = source.sample(places, min(KEPT, len(places)))
        answered = self._gates.ask("pairs", {"names": self._names, "turns": turns, "seed": seed, "keep": keep}, where)
        if answered.facts.get("declined"):
            raise Stop(
                "rejected", "inconsistent_accepts", "accepts declines a timed call that differs from an accepted one in values alone"
            )
        for one in answered.facts["answers"]:
            call = self._calls[one["call"]]
            factor = timing.factor_of(seed, one["turn"], one["call"])
            self._check_answer(answered, one, call.changed(lambda tensor, by=factor: tensor.clone().mul_(by), "as timed", "values"))
        return answered.facts["baseline_ms"], answered.facts["patched_ms"]

    def _check_answer(self, answered: Any, facts: dict[str, Any], call: Call) -> None:
        """The result of a timed call is held to the same rule as every other."""
        if not self._bench.usable(call):
            return
        truth = self._bench.original.truth(call)
        tree, listed = answered.picture(facts)
        pairs = zip(listed, truth.leaves)
        listed = [one for one, want in pairs if want.path.startswith("result")]
        fault, _ = compare(
            {**truth.tree, "result": tree["result"]},
            [*listed, *(want for want in truth.leaves if not want.path.startswith("result"))],
            truth,
            self._bench.usual_for(call),
        )
        if fault is not None:
            text = f"a timed call gave a wrong result although untimed ones were right: {fault.reason}"
            raise Stop("incorrect", fault.kind, text, fault.details)

    def _inflated(self, baseline: list[list[float]]) -> str | None:
        """What is wrong with the original's time as the candidate's process reports it, by the original in this process; None if nothing.

        A baseline that is several times too slow would make any candidate seem fast.
        """
        reported_ms = statistics.median(sum(row) for row in baseline) / len(self._calls)
        own_ms = []
        for _ in range(_CLOCK_TRIES):
            own_ms.append(self._original_ms())
            if reported_ms <= _CLOCK_SLACK * own_ms[-1] + 1e3 * _CLOCK_OVERHEAD_S:
                return None
        return f"its process reports {reported_ms:.4g} ms per call of the original, which takes {max(own_ms):.4g} ms without the candidate"

    def _original_ms(self) -> float:
        """Milliseconds per call of the original, where no candidate is: the median of a few rounds after one to warm up."""
        twin, on_device = self._bench.original.twin, self._device != "cpu"
        rounds = []
        with self._bench.ambient.applied():
            for _ in range(1 + _ORIGINAL_ROUNDS):
                rounds.append(0.0)
                for call in self._calls:
                    args, kwargs, kept = call.fresh()
                    restore(twin, kept)
                    spent, _ = timing.timed(lambda given: type(twin).forward(twin, *given[0], **given[1]), (args, kwargs), on_device)
                    rounds[-1] += spent / len(self._calls)
        return statistics.median(rounds[1:])

    def _check_clock(self, patched: list[list[float]]) -> None:
        """The candidate's time by the judge's own clock: a process that reports much less than it takes is not believed."""
        reported_s = statistics.median(sum(row) for row in patched) / len(self._calls) / 1e3
        taken_s = []
        for _ in range(_CLOCK_TRIES):
            taken_s.append(self._window(1, reported_s))
            if taken_s[-1] <= _CLOCK_SLACK * reported_s + _CLOCK_OVERHEAD_S:
                return
        text = f"its process reports {1e3 * reported_s:.4g} ms per call; by the judge's clock a call takes {1e3 * min(taken_s):.4g} ms"
        raise Stop("rejected", "clock", text)

    def _window(self, side: int, expected_s: float) -> float:
        """Seconds per call of one side, by a clock that its process can't reach."""
        size = 1 + sum(tensor.numel() * tensor.element_size() for call in self._calls for _, tensor in call.inputs()) // len(self._calls)
        count = max(4, min(_WINDOW_COUNT, int(_WINDOW_S / max(expected_s, 1e-6)), _WINDOW_BYTES // size))
        # whole rounds over the calls, so that both sides run the same mixture
        count = max(1, count // len(self._names)) * len(self._names)
        seed = self._bench.options.seed + side
        self._gates.ask("stock", {"names": self._names, "side": side, "count": count, "seed": seed}, "timing")
        # work on a GPU is not the main thread's: there the wall clock has to do
        clock = self._gates.subject.spent_s if self._device == "cpu" else time.perf_counter
        started = clock()
        self._gates.ask("window", {}, "timing")
        return (clock() - started) / count
