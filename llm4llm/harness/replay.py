"""Repeat a driver call faithfully: fresh copies of its inputs, the state it began with, and everything put back afterwards."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from llm4llm.harness import values
from llm4llm.harness.ambient import Randomness
from llm4llm.harness.nested import Copies, equal, resolved, returned_at
from llm4llm.harness.workload import FORWARD, LOOP, DriverEntry, Entry, Example, Kept

Around = Callable[[], AbstractContextManager[Any]]


class NotRecorded(Exception):
    """The driver call has no stored example; its refusal says why."""


def replay(driver: DriverEntry, around: Around | None = None, *, example: int = 0) -> Any:
    """The result of one repetition; for a loop, the list of its steps' results.

    `around` gives a context that is entered once, after inputs and state are in place and directly around the call (for a loop:
    around all its forwards). Exceptions of the call pass through, after the state was put back.
    """
    return _repeat(driver, around, example, timing=False)[1]


def timed(driver: DriverEntry, *, example: int = 0) -> tuple[float, Any]:
    """(milliseconds of the call itself, its result); with CUDA in use the call is fenced by synchronisation on both sides.

    Copies of inputs lie outside the measured time. For a loop it is the sum over its forwards.
    """
    return _repeat(driver, None, example, timing=True)


def _repeat(driver: DriverEntry, around: Around | None, example: int, *, timing: bool) -> tuple[float, Any]:
    if example >= len(driver.examples):
        text = driver.refusal.text if driver.refusal else "no inputs were stored"
        raise NotRecorded(f"{driver.id} can't be replayed: {text}")
    chosen = driver.examples[example]
    with ExitStack() as stack:
        before = Randomness.now()
        stack.callback(before.restore)
        copies = Copies([(step.args, step.kwargs) for step in chosen.steps], [kept.values for kept in chosen.kept])
        inputs = [copies.of((step.args, step.kwargs)) for step in chosen.steps]
        for kept in chosen.kept:
            stack.enter_context(_in_place(kept, copies))
        call = getattr(driver.root.module, driver.method) if driver.method not in (FORWARD, LOOP) else driver.root.module
        with around() if around is not None else nullcontext():
            spent, results = _run(call, chosen, inputs, timing=timing)
    return spent, results if driver.method == LOOP else results[0]


def _run(call: Callable[..., Any], example: Example, inputs: list[Any], *, timing: bool) -> tuple[float, list[Any]]:
    wanted = {(item.step, item.path) for step in example.steps for item in step.returned}
    found: dict[tuple[int, str], Any] = {}
    fence = torch.cuda.synchronize if timing and torch.cuda.is_initialized() else _no_fence
    spent_ms, results = 0.0, []
    for index, step in enumerate(example.steps):
        args, kwargs = resolved(inputs[index], found) if step.returned else inputs[index]
        inputs[index] = None
        with step.ambient.applied():
            if index == 0 or step.randomness is not example.steps[index - 1].randomness:
                step.randomness.restore()
            fence()
            start = time.perf_counter()
            result = call(*args, **kwargs)
            fence()
            spent_ms += (time.perf_counter() - start) * 1e3
        del args, kwargs
        found.update(returned_at(result, index, wanted))
        results.append(result)
    return spent_ms, results


@contextmanager
def settled_heap() -> Iterator[None]:
    """For timing: what is alive now is left out of garbage collections, which else walk every object of a big process at random times.

    Everything that is made inside is collected as usual.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _no_fence() -> None:
    return None


@contextmanager
def _in_place(kept: Kept, copies: Copies) -> Iterator[None]:
    """Put what a module kept before the call in place; afterwards the module is exactly as it was.

    Entries that the call leaves alone stay the live objects, so that what is bound to a buffer's address stays valid.
    """
    live = values.kept_by(kept.module)
    first = kept.changing is None
    wanted = _all_entries(live, kept.values) - kept.uncopied if kept.changing is None else kept.changing
    parts = dict(kept.module.named_modules())
    training = {path: part.training for path, part in parts.items() if "training" in vars(part)}
    for path in training.keys() & kept.training.keys():
        parts[path].training = kept.training[path]
    for path, kind, key in sorted(wanted):
        if path not in parts:
            continue
        store: dict[str, Any] = parts[path]._buffers if kind == "buffers" else parts[path].__dict__
        if key in kept.values.get(path, {}).get(kind, {}):
            store[key] = copies.of(kept.values[path][kind][key])
        else:
            store.pop(key, None)
    try:
        yield
        if first:
            after = values.kept_by(kept.module)
            changed = _differing(live, kept.values) | _differing(after, kept.values) | _all_entries(after) - _all_entries(live)
            kept.changing = changed - kept.uncopied
    finally:
        values.restore(kept.module, live)
        for path, flag in training.items():
            parts[path].training = flag


def _all_entries(*sides: dict[str, dict[str, Any]]) -> set[Entry]:
    return {(path, kind, key) for side in sides for path, kinds in side.items() for kind, items in kinds.items() for key in items}


def _differing(left: dict[str, dict[str, Any]], right: dict[str, dict[str, Any]]) -> set[Entry]:
    """Entries that one side lacks or that hold different values."""
    missing = object()
    return {
        (path, kind, key)
        for path, kind, key in _all_entries(left, right)
        if not equal(left.get(path, {}).get(kind, {}).get(key, missing), right.get(path, {}).get(kind, {}).get(key, missing))
    }
