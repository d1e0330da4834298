"""Patches compared with the originals inside the live model, site by site and on the same inputs.

Whole runs of a model that amplifies rounding can't tell a right kernel from a wrong one: after a few layers both are far from the unpatched
run. Here the unpatched model runs, and at chosen calls of every patched module the patch answers as well, from copies of the very inputs
and state. What is allowed is measured at the same place: how far the original itself moves when its inputs carry rounding noise.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from llm4llm.harness import values
from llm4llm.harness.ambient import Randomness
from llm4llm.harness.evidence import Jitter, Leaf, flat
from llm4llm.harness.instrument import instrumented
from llm4llm.harness.phases import Phase
from llm4llm.harness.replay import replay
from llm4llm.harness.tolerance import allowance, error
from llm4llm.harness.wording import counted
from llm4llm.harness.workload import DriverEntry
from llm4llm.runtime.dispatch import Dispatcher

MAX_COMPARED = 400  # calls of one driver call
_TOO_LARGE = 1e30  # masks hold such numbers, or infinities: no rounding error ever comes near them
Forward = Callable[..., Any]


@dataclass
class SiteComparison:
    """What came of it; errors are parts of the row's largest magnitude."""

    compared: int = 0
    sites: set[str] = field(default_factory=set)
    worst: float = 0.0  # the largest error, in parts of its allowance
    worst_error: float = 0.0
    where: str = ""
    wrong: str | None = None  # the first disagreement

    @property
    def passed(self) -> bool:
        return self.wrong is None and self.compared > 0

    @property
    def detail(self) -> str:
        if self.wrong is not None:
            return self.wrong
        if not self.compared:
            return "no call of a patched module could be compared on the same inputs"
        text = f"{counted(self.compared, 'call')} at {counted(len(self.sites), 'site')} compared on the same inputs: all agree"
        return (
            f"{text}; the largest error is {self.worst_error:.3g} of its row's largest, {self.worst:.2f} of its allowance, at {self.where}"
        )


def compare_sites(driver: DriverEntry, example: int, paths: Collection[str]) -> SiteComparison:
    """Repeat the driver call with the patches in place, but let the original answer; at chosen calls the patch answers besides.

    Of every site and phase the first call is compared, then the 4th, the 16th and so on.
    """
    comparison = _Comparison()
    with instrumented(driver.root, comparison.watch, paths=frozenset(paths), driver=driver):
        replay(driver, example=example)
    return comparison.found


class _Comparison:
    def __init__(self) -> None:
        self.found = SiteComparison()
        self._seen: Counter[tuple[str, str]] = Counter()
        self._jitter = Jitter(frozenset(), seed=1)
        self._patched_inside = False  # whether patches below the module that is being compared answer

    def watch(self, path: str, module: nn.Module, phase: Phase, original: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not isinstance(original, Dispatcher) or self._patched_inside:
            return original(*args, **kwargs)
        self._seen[path, phase] += 1
        found, trial = self.found, None
        if found.wrong is None and found.compared < MAX_COMPARED and _is_power_of_four(self._seen[path, phase]):
            trial = _trial(module, args, kwargs)
        if trial is None:
            return original.original(*args, **kwargs)
        hits = _hits(original)
        self._patched_inside = True
        try:
            patched = trial.run(original, None)
        finally:
            self._patched_inside = False
        if _hits(original) > hits:
            shaken = trial.run(original.original, self._jitter)
            result = original.original(*args, **kwargs)
            _compare(found, f"{path or 'the root'} ({phase})", trial.outcome(result, args, kwargs), patched, shaken)
            found.compared += 1
            found.sites.add(path)
            return result
        return original.original(*args, **kwargs)


def _hits(dispatcher: Dispatcher) -> int:
    return sum(site.hits for site in dispatcher.sites)


def _trial(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Trial | None":
    try:
        return _Trial(module, args, kwargs)
    except values.NotReplayable:
        return None


class _Trial:
    """One call of one module, to be repeated from copies."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._module = module
        self._kept = values.kept_by(module)
        self._randomness = Randomness.now()
        self._given = values.snapshot((args, kwargs, self._kept))

    def run(self, forward: Forward, jitter: Jitter | None) -> dict[str, Leaf]:
        """What a forward returns and leaves behind, from a copy of the call's inputs and state; all is as before afterwards."""
        args, kwargs, kept = values.snapshot(self._given)
        if jitter is not None:
            args = tuple(_shaken(item, jitter) for item in args)
            kwargs = {name: _shaken(item, jitter) for name, item in kwargs.items()}
        values.restore(self._module, kept)
        try:
            result = forward(*args, **kwargs)
            return self.outcome(result if jitter is None else jitter(result), args, kwargs)
        finally:
            values.restore(self._module, self._kept)
            self._randomness.restore()

    def outcome(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Leaf]:
        return flat({"result": result, "args": args, "kwargs": kwargs, "kept": values.kept_by(self._module)})


def _shaken(item: Any, jitter: Jitter) -> Any:
    if isinstance(item, torch.Tensor) and item.is_floating_point() and item.numel() and not bool(item.abs().max() < _TOO_LARGE):
        return item
    return jitter(item) if isinstance(item, torch.Tensor) else item


def _compare(found: SiteComparison, where: str, plain: dict[str, Leaf], patched: dict[str, Leaf], shaken: dict[str, Leaf]) -> None:
    if plain.keys() != patched.keys():
        one = sorted(plain.keys() ^ patched.keys())[0]
        found.wrong = f"{where}: {one} is {'gone' if one in plain else 'new'} with the patch"
        return
    for path, leaf in plain.items():
        twin = patched[path]
        if twin.kind != leaf.kind:
            found.wrong = f"{where}: {path} is {twin.kind} instead of {leaf.kind}"
            return
        if not leaf.is_tensor or not (leaf.value.is_floating_point() or leaf.value.is_complex()):
            if not _equal(leaf, twin):
                found.wrong = f"{where}: {path} differs"
                return
            continue
        off = error(twin.value, leaf.value)
        growth = error(shaken[path].value, leaf.value) if path in shaken and shaken[path].kind == leaf.kind else 0.0
        allowed = allowance(leaf.value.dtype, 0.0, growth)
        if off > allowed:
            found.wrong = f"{where}: {path} is off by {off:.3g} of its row's largest on the same inputs, allowed {allowed:.3g}"
            return
        if off / allowed >= found.worst:
            found.worst, found.worst_error, found.where = off / allowed, off, where


def _equal(one: Leaf, two: Leaf) -> bool:
    if one.is_tensor and two.is_tensor:
        return torch.equal(one.value, two.value)
    return bool(one.value == two.value)


def _is_power_of_four(number: int) -> bool:
    return number & (number - 1) == 0 and number.bit_length() % 2 == 1
