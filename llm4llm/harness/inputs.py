"""Fresh inputs from the captured calls: other values through the same shapes.

Activations get other values: floating tensors whose values look like a sample of something continuous. Masks block other places, ids name
other rows, positions come later. Other integers, tables of cosines and sines, and preallocated zeros mean something by themselves and stay.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from llm4llm.harness.calls import Call, laid_out
from llm4llm.harness.values import replaced

LATER = (301, 1013)
_SAMPLE = 4096
_ORDER = 4  # so many integers are hardly in order by chance
_FEW = 4  # a mask or a flag has no more different values
_BLOCKED = -9999.0  # an activation does not reach what masks use for "never"


def is_activation(tensor: torch.Tensor) -> bool:
    """True for floating tensors whose values may be drawn anew without changing what they mean."""
    if type(tensor) is not torch.Tensor or not tensor.is_floating_point() or tensor.numel() < 2 or tensor.element_size() < 2:
        return False
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].float()
        if bool((sample <= _BLOCKED).any()) or not bool(sample.isfinite().all()):
            return False
        if len(sample.unique()) <= min(_FEW, sample.numel() - 1):
            return False
        return not _has_equal_halves(tensor)


def _has_equal_halves(tensor: torch.Tensor) -> bool:
    """Tables of cosines hold every angle twice; candidates may rely on it."""
    width = tensor.shape[-1]
    if width < 4 or width % 2:
        return False
    return bool(torch.equal(tensor[..., : width // 2], tensor[..., width // 2 :]))


def captured(records: list[dict[str, Any]]) -> list[Call]:
    """The captured calls of a task, with the tensors marked whose values are free in every call."""
    made = []
    for index, record in enumerate(records):
        call = Call(
            tuple(record["args"]), dict(record["kwargs"]), record["kept"], record["rng"], record["phase"],
            f"captured call {index}", index, "captured",
        )  # fmt: skip
        free = tuple(position for position, (_, tensor) in enumerate(call.inputs()) if is_activation(tensor))
        made.append(replace(call, scale=free))
    return _agreed(made)


def _agreed(calls: list[Call]) -> list[Call]:
    """A tensor that is no activation in one call is none in any: a mask may happen to look like a sample in some of them."""
    fixed = set()
    for call in calls:
        free = set(call.scale)
        fixed |= {path for position, (path, tensor) in enumerate(call.inputs()) if tensor.numel() > 1 and position not in free}
    agreed = []
    for call in calls:
        listed = call.inputs()
        # small tensors are too short to tell; then the other calls decide
        agreed.append(replace(call, scale=tuple(position for position in call.scale if listed[position][0] not in fixed)))
    return agreed


@dataclass(frozen=True)
class Change:
    """One way to change activations; `together` in words for reports."""

    words: str
    make: Callable[[torch.Tensor], torch.Tensor]


def changes(source: torch.Generator) -> list[Change]:
    """Ways to draw other values, most telling first; the random ones draw from `source` (a CPU generator)."""

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=source).to(tensor.device)

    def redrawn(tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.float()
        return wide.mean() + wide.std(correction=0) * noise(tensor)

    def same_corners(tensor: torch.Tensor) -> torch.Tensor:
        new, old = redrawn(tensor).reshape(-1), tensor.float().reshape(-1)
        if new.numel() > 32:
            new[:8], new[-8:] = old[:8], old[-8:]
        return new.view(tensor.shape)

    def zero_rows(tensor: torch.Tensor) -> torch.Tensor:
        new = redrawn(tensor)
        if new.dim() > 1:
            new[..., -1:, :] = 0
            new.reshape(-1, new.shape[-1])[0] = 0
        return new

    def perturbed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() * (1 + 0.05 * noise(tensor))

    return [
        Change("values drawn anew", redrawn),
        Change("eight times as large", lambda tensor: tensor.float() * 8),
        Change("a thousandth as large", lambda tensor: tensor.float() * 1e-3),
        Change("with rows of zeros", zero_rows),
        Change("negated", lambda tensor: -tensor.float()),
        Change("new between the same corners", same_corners),
        Change("slightly perturbed", perturbed),
    ]


def different(calls: list[Call], count: int) -> list[Call]:
    """At most `count` calls, of as many different shapes as possible, small and large."""
    kinds: dict[str, Call] = {}
    for call in calls:
        kinds.setdefault(call.shapes(), call)
    ordered = sorted(kinds.values(), key=Call.elements)
    if len(ordered) <= count:
        return ordered
    step = (len(ordered) - 1) / max(1, count - 1)
    return [ordered[round(index * step)] for index in range(count)]


def with_other_values(calls: list[Call], source: torch.Generator, per_change: int) -> Iterator[Call]:
    """Calls with other values, each change on a few different shapes; calls without activations give none."""
    picked = different([call for call in calls if call.scale], per_change)
    for change in changes(source):
        for call in picked:
            yield call.changed(change.make, change.words, "values")


def is_position(tensor: torch.Tensor) -> bool:
    """True for integers that count along the last dimension as positions do (steps of 0 or 1), or that are single numbers per row."""
    if type(tensor) is not torch.Tensor or tensor.dtype not in (torch.int32, torch.int64) or not tensor.numel() or not tensor.dim():
        return False
    if int(tensor.min()) < 0 or int(tensor.max()) <= 1:
        return False
    steps = tensor.diff(dim=-1)
    return bool(((steps == 0) | (steps == 1)).all())


def is_mask(tensor: torch.Tensor) -> bool:
    """True for tensors that say of every place whether it counts: booleans, zeros and ones, or zeros and what blocks a place."""
    if type(tensor) is not torch.Tensor or tensor.dim() < 2 or tensor.shape[-1] < 2:
        return False
    if tensor.dtype == torch.bool:
        return True
    if not tensor.is_floating_point():
        return tensor.dtype != torch.uint8 and not tensor.is_complex() and int(tensor.min()) == 0 and int(tensor.max()) == 1
    few = tensor.detach().float().unique()
    return len(few) == 2 and float(few[-1]) in (0.0, 1.0) and (float(few[0]) == 0.0 or float(few[0]) <= _BLOCKED)


def with_other_masks(calls: list[Call], source: torch.Generator) -> Iterator[Call]:
    """Calls whose masks block other places: the same places of the last dimension change seats in every row.

    A guard does not look at values, so a mask of another pattern reaches a candidate.
    """
    for call in different(calls, 3):
        seats: dict[int, torch.Tensor] = {}
        found: dict[int, torch.Tensor] = {}
        for _, tensor in call.inputs():
            if is_mask(tensor) and 0 not in tensor.stride():
                width = tensor.shape[-1]
                order = seats.setdefault(width, torch.randperm(width, generator=source).to(tensor.device))
                other = tensor.index_select(-1, order)
                if not torch.equal(other, tensor):
                    found[id(tensor)] = laid_out(other, tensor)
        if found:
            yield _with(call, found, "other places masked")


def is_ids(tensor: torch.Tensor, sizes: frozenset[int]) -> bool:
    """True for integers in no order, of two dimensions or more, that may be rows of a weight: `sizes` are the weights' numbers of rows."""
    if type(tensor) is not torch.Tensor or tensor.dtype not in (torch.int32, torch.int64) or tensor.dim() < 2:
        return False
    low, high = int(tensor.min()), int(tensor.max())
    ordered = bool((tensor.diff(dim=-1) >= 0).all())
    return low >= 0 and high > 1 and not ordered and any(size > high for size in sizes)


def with_other_ids(calls: list[Call], module: nn.Module, source: torch.Generator) -> Iterator[Call]:
    """Calls whose ids are renamed to any row of the smallest weight that has them all; equal ids stay equal."""
    sizes = frozenset(int(weight.shape[0]) for weight in module.parameters() if weight.dim() == 2)
    seen: dict[str, list[torch.Tensor]] = {}
    for call in calls:
        for path, tensor in call.inputs():
            if tensor.numel():
                seen.setdefault(path, []).append(tensor)
    largest: dict[str, int] = {}
    for path, listed in seen.items():
        # a few integers may be in order by chance; then the other calls decide
        telling = [tensor for tensor in listed if tensor.dim() and tensor.shape[-1] >= _ORDER]
        if telling and all(is_ids(tensor, sizes) for tensor in telling):
            largest[path] = max(int(tensor.max()) for tensor in listed)
    for call in different(calls, 3) if largest else []:
        found = {}
        for path, tensor in call.inputs():
            if largest.get(path, max(sizes)) < max(sizes):
                rows = min(size for size in sizes if size > largest[path])
                names = torch.randperm(rows, generator=source).to(tensor.device, tensor.dtype)
                found[id(tensor)] = laid_out(names[tensor.long()], tensor)
        yield _with(call, found, "other ids")


def _with(call: Call, found: dict[int, torch.Tensor], words: str) -> Call:
    args, kwargs = replaced((call.args, call.kwargs), lambda tensor: found.get(id(tensor), tensor))
    return replace(call, args=args, kwargs=kwargs, origin=f"{call.origin}, {words}", regime="values", notes={})


def with_later_positions(calls: list[Call]) -> Iterator[Call]:
    """Calls at positions far behind the recorded ones.

    A guard does not look at values, so a longer sequence reaches a candidate; angles in a low precision are only wrong there. Where the
    numbers are something else (ids, places in a cache), the original can't run them and the call is dropped.
    """
    for offset in LATER:
        for call in different(calls, 2):
            found = {id(tensor): tensor + offset for _, tensor in call.inputs() if is_position(tensor)}
            if found:
                yield _with(call, found, f"{offset} positions later")
