"""Time of the original and of a candidate in turns, and what may be said of their ratio.

Every timed call gets copies of its inputs at new addresses, with values that no call has had before. The two sides follow each other in
ABBA order, so that a drift of the machine falls on both. References to the clocks are taken on import, before a candidate is loaded.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_CLOCK_NS = time.perf_counter_ns
_EVENT = torch.cuda.Event
_SYNCHRONIZE = torch.cuda.synchronize
_RECORD, _ELAPSED = torch.cuda.Event.record, torch.cuda.Event.elapsed_time

FACTOR_SPREAD = 0.05
HOST_METHOD = "host clock around each call, ABBA pairs, fresh values and addresses"
EVENT_METHOD = "CUDA events around each call, ABBA pairs, fresh values and addresses"


@dataclass(frozen=True)
class Side:
    """One of the two variants: `ready` makes arguments outside the timed window, `run` is timed."""

    ready: Callable[[int, float], tuple[Any, Any]]
    run: Callable[[tuple[Any, Any]], Any]


def factor_of(seed: int, turn: int, position: int) -> float:
    """The factor on a call's free tensors in one turn: the same for both sides, and known to the judge."""
    return 1.0 + FACTOR_SPREAD * (2.0 * random.Random(f"{seed}/{turn}/{position}").random() - 1.0)  # noqa: S311


def timed(run: Callable[[tuple[Any, Any]], Any], given: tuple[Any, Any], on_device: bool) -> tuple[float, Any]:
    """(milliseconds, result) of one call."""
    if not on_device:
        started = _CLOCK_NS()
        result = run(given)
        return (_CLOCK_NS() - started) / 1e6, result
    first, last = _EVENT(enable_timing=True), _EVENT(enable_timing=True)
    _SYNCHRONIZE()
    _RECORD(first)
    result = run(given)
    _SYNCHRONIZE()  # side streams too
    _RECORD(last)
    _SYNCHRONIZE()
    return float(_ELAPSED(first, last)), result


def turn(sides: tuple[Side, Side], position: int, factor: float, backwards: bool, on_device: bool) -> tuple[float, float, Any]:
    """(baseline ms, patched ms, the patched side's result and arguments) of one call on both sides."""
    spent = [0.0, 0.0]
    kept: Any = None
    for which in (1, 0) if backwards else (0, 1):
        given = sides[which].ready(position, factor)
        spent[which], result = timed(sides[which].run, given, on_device)
        if which == 1:
            kept = (result, given)
        del result, given
    return spent[0], spent[1], kept


def paired(
    sides: tuple[Side, Side], count: int, turns: int, seed: int, on_device: bool, keep: Callable[[int, int, Any], None]
) -> tuple[list[list[float]], list[list[float]]]:
    """Samples in ms, [turn][call], of both sides. `keep(turn, call, (result, arguments))` is told of every patched call, untimed."""
    baseline: list[list[float]] = []
    patched: list[list[float]] = []
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(turns):
            rows: tuple[list[float], list[float]] = ([], [])
            for position in range(count):
                factor = factor_of(seed, number, position)
                one, two, kept = turn(sides, position, factor, number % 4 in (1, 2), on_device)
                rows[0].append(one)
                rows[1].append(two)
                keep(number, position, kept)
                del kept
            baseline.append(rows[0])
            patched.append(rows[1])
    finally:
        if collecting:
            gc.enable()
    return baseline, patched


def weighted(samples: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """Milliseconds per turn: each call's time, times how often the workload makes it."""
    return [sum(weight * one for weight, one in zip(weights, row, strict=True)) for row in samples]


def ratio_interval(
    baseline: Sequence[float], patched: Sequence[float], seed: int = 0, resamples: int = 1000
) -> tuple[float, tuple[float, float] | None]:
    """The median of baseline/patched over pairs and its 95% interval by resampling pairs; None below five pairs."""
    ratios = [one / two for one, two in zip(baseline, patched, strict=True)]
    middle = statistics.median(ratios)
    if len(ratios) < 5:
        return middle, None
    source = random.Random(seed)  # noqa: S311
    count = len(ratios)
    medians = sorted(statistics.median(source.choices(ratios, k=count)) for _ in range(resamples))
    return middle, (medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1])
