"""Fresh shapes inside the recorded ranges: axes are found by which sizes vary together over the captured calls, then cut consistently.

Two dimensions belong to one axis if their sizes are equal in every captured call of the same structure. A size that is another axis plus a
constant, or the sum or the product of two, follows them (keys and values of P tokens, L new ones, a mask of P + L). Integers among the
arguments that count an axis (a cache's length) and integer tensors whose largest value does (positions) follow too.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from llm4llm.harness.calls import Call, laid_out
from llm4llm.harness.values import is_object, leaves, replaced

Sizes = dict[int, int]  # axis -> size


@dataclass(frozen=True)
class Axis:
    """Sizes of one free axis over the captured calls of a structure."""

    name: str  # the first tensor dimension that shows it
    recorded: tuple[int, ...]

    @property
    def low(self) -> int:
        return min(self.recorded)

    @property
    def high(self) -> int:
        return max(self.recorded)


@dataclass(frozen=True)
class Structure:
    """Captured calls with the same paths and ranks, their free axes, and the rule for every size, count and largest value that varies."""

    calls: tuple[Call, ...]
    axes: tuple[Axis, ...]
    size_rules: dict[tuple[str, int], Callable[[Sizes], int]]
    count_rules: dict[str, Callable[[Sizes], int]]
    largest_rules: dict[str, Callable[[Sizes], int]]

    def sizes(self, position: int) -> Sizes:
        return {index: axis.recorded[position] for index, axis in enumerate(self.axes)}


def _listed(call: Call) -> list[tuple[str, object]]:
    return list(leaves({"args": call.args, "kwargs": call.kwargs, "kept": call.kept}))


def _form(call: Call) -> tuple[Any, ...]:
    return tuple((path, leaf.dim(), leaf.dtype) if isinstance(leaf, torch.Tensor) else (path, type(leaf)) for path, leaf in _listed(call))


def structures(calls: list[Call]) -> list[Structure]:
    """The captured calls grouped by structure, those with most calls first."""
    groups: dict[Any, list[Call]] = {}
    for call in calls:
        groups.setdefault(_form(call), []).append(call)
    return [_structure(group) for group in sorted(groups.values(), key=len, reverse=True)]


def _structure(calls: list[Call]) -> Structure:
    listed = [_listed(call) for call in calls]
    sizes: dict[tuple[str, int], tuple[int, ...]] = {}
    counts: dict[str, tuple[int, ...]] = {}
    largest: dict[str, tuple[int, ...]] = {}
    for row in zip(*listed, strict=True):
        path, first = row[0]
        if isinstance(first, torch.Tensor):
            found = [leaf for _, leaf in row if isinstance(leaf, torch.Tensor)]
            for dim in range(first.dim()):
                sizes[path, dim] = tuple(int(tensor.shape[dim]) for tensor in found)
            if first.dtype in (torch.int32, torch.int64) and all(tensor.numel() for tensor in found):
                largest[path] = tuple(int(tensor.max()) for tensor in found)
        elif type(first) is int and not path.startswith("['kept']"):
            counts[path] = tuple(leaf for _, leaf in row if isinstance(leaf, int))
    axes = _axes(sizes)
    return Structure(
        tuple(calls),
        tuple(axes),
        {key: _rule(recorded, axes) or _constant(recorded) for key, recorded in sizes.items()},
        _followers(counts, axes),
        _followers(largest, axes),
    )


def _axes(sizes: dict[tuple[str, int], tuple[int, ...]]) -> list[Axis]:
    varying: dict[tuple[int, ...], str] = {}
    for (path, dim), recorded in sizes.items():
        if len(set(recorded)) > 1:
            varying.setdefault(recorded, f"{spoken(path)} dimension {dim}")
    axes: list[Axis] = []
    # small ones first: a total is made of its parts, not a part of the total and the rest
    for recorded in sorted(varying, key=sum):
        if _rule(recorded, axes) is None:
            axes.append(Axis(varying[recorded], recorded))
    return axes


def spoken(path: str) -> str:
    """A path as people write it: args[0], kwargs['mask']."""
    return path.removeprefix("['").replace("']", "", 1) if path.startswith("['") else path


def _constant(recorded: tuple[int, ...]) -> Callable[[Sizes], int]:
    return lambda sizes: recorded[0]


def _rule(recorded: tuple[int, ...], axes: list[Axis]) -> Callable[[Sizes], int] | None:
    """How these sizes follow from the free axes; None if they do not."""
    if len(set(recorded)) == 1:
        return None
    for index, axis in enumerate(axes):
        offset = recorded[0] - axis.recorded[0]
        if all(mine - theirs == offset for mine, theirs in zip(recorded, axis.recorded, strict=True)):
            return lambda sizes, index=index, offset=offset: sizes[index] + offset  # type: ignore[misc]
        factor, rest = divmod(recorded[0], max(1, axis.recorded[0]))
        if factor > 1 and not rest and all(mine == factor * theirs for mine, theirs in zip(recorded, axis.recorded, strict=True)):
            return lambda sizes, index=index, factor=factor: sizes[index] * factor  # type: ignore[misc]
    for one, two in itertools.combinations(range(len(axes)), 2):
        pairs = list(zip(axes[one].recorded, axes[two].recorded, strict=True))
        if all(mine == left + right for mine, (left, right) in zip(recorded, pairs, strict=True)):
            return lambda sizes, one=one, two=two: sizes[one] + sizes[two]  # type: ignore[misc]
        if all(mine == left * right for mine, (left, right) in zip(recorded, pairs, strict=True)):
            return lambda sizes, one=one, two=two: sizes[one] * sizes[two]  # type: ignore[misc]
    return None


def _followers(recorded: dict[str, tuple[int, ...]], axes: list[Axis]) -> dict[str, Callable[[Sizes], int]]:
    rules = {path: _rule(values, axes) for path, values in recorded.items()}
    return {path: rule for path, rule in rules.items() if rule is not None}


def unrecorded(structure: Structure, source: torch.Generator, count: int) -> list[Sizes]:
    """At most `count` combinations of axis sizes inside the recorded ranges that no captured call has, the most telling first.

    Every size of a short axis, sizes next to the ends, next to powers of two and odd ones of a long axis; each with small sizes of the
    other axes first, so that the smallest failing shape is found early.
    """
    if not structure.axes:
        return []
    known = {tuple(axis.recorded[position] for axis in structure.axes) for position in range(len(structure.calls))}
    options = [_sizes_of(axis, source) for axis in structure.axes]
    wanted: list[tuple[int, ...]] = []
    middle = [sorted(axis.recorded)[len(axis.recorded) // 2] for axis in structure.axes]
    for index, sizes in enumerate(options):
        for size in sizes:
            wanted.append(tuple(size if other == index else middle[other] for other in range(len(options))))
    wanted.append(tuple(axis.high for axis in structure.axes))
    wanted.append(tuple(axis.low for axis in structure.axes))
    for _ in range(count):
        wanted.append(tuple(sizes[int(torch.randint(len(sizes), (1,), generator=source))] for sizes in options))
    fresh = [one for one in dict.fromkeys(wanted) if one not in known]
    return [dict(enumerate(one)) for one in _spread(fresh, len(options), count)]


def _spread(wanted: list[tuple[int, ...]], axes: int, count: int) -> list[tuple[int, ...]]:
    """Cut the list without losing an axis."""
    if len(wanted) <= count:
        return wanted
    step = len(wanted) / count
    return [wanted[int(index * step)] for index in range(count)]


def _sizes_of(axis: Axis, source: torch.Generator) -> list[int]:
    low, high = axis.low, axis.high
    if high - low <= 8:
        return [size for size in range(low, high + 1) if size not in axis.recorded] or [low, high]
    near = [(low + high) // 2 | 1, low + 1, high - 1]
    power = 1 << (((low + high) // 2).bit_length() - 1)
    near += [size for size in (power, power + 1, power - 1) if low < size < high]
    near += [low + int(torch.randint(high - low, (1,), generator=source)) for _ in range(2)]
    return list(dict.fromkeys(size for size in near if size not in axis.recorded))


def resized(structure: Structure, sizes: Sizes) -> Call:
    """A call of these axis sizes, cut out of the captured call that needs the least filling up (by repeating from the start)."""
    position = min(range(len(structure.calls)), key=lambda index: _lacking(structure.sizes(index), sizes))
    base = structure.calls[position]
    listed = [(path, leaf) for path, leaf in _listed(base) if isinstance(leaf, torch.Tensor)]
    made: dict[int, torch.Tensor] = {}
    for path, tensor in listed:
        wanted = [structure.size_rules[path, dim](sizes) for dim in range(tensor.dim())]
        if min(wanted, default=0) < 0:
            raise ValueError(f"{path} would get a negative size")
        made.setdefault(id(tensor), _cut(tensor, wanted, structure.largest_rules.get(path), sizes))
    args, kwargs, kept = replaced((base.args, base.kwargs, base.kept), lambda tensor: made.get(id(tensor), tensor))
    for path, rule in structure.count_rules.items():
        _set_at({"args": args, "kwargs": kwargs}, path, rule(sizes))
    said = ", ".join(f"{axis.name} = {sizes[index]}" for index, axis in enumerate(structure.axes))
    return replace(base, args=args, kwargs=kwargs, kept=kept, origin=f"{base.origin} cut to {said}", regime="shapes", notes={})


def _lacking(have: Sizes, want: Sizes) -> tuple[float, int]:
    grown = 1.0
    for axis, size in want.items():
        grown *= max(1.0, size / max(1, have[axis]))
    return grown, sum(have.values())


def _cut(tensor: torch.Tensor, wanted: list[int], largest: Callable[[Sizes], int] | None, sizes: Sizes) -> torch.Tensor:
    cut = tensor.detach()
    for dim, size in enumerate(wanted):
        have = cut.shape[dim]
        if size < have:
            cut = cut.narrow(dim, 0, size)
        elif size > have:
            index = torch.arange(size, device=cut.device) % max(1, have)
            cut = cut.index_select(dim, index) if have else cut.new_zeros([*cut.shape[:dim], size, *cut.shape[dim + 1 :]])
    if largest is not None and cut.numel():
        shift = largest(sizes) - int(cut.max())
        cut = (cut + shift).clamp(min=min(0, int(tensor.min())))
    elif cut.shape == tensor.shape:
        return tensor
    return laid_out(cut, tensor)


def _set_at(root: dict[str, Any], wanted: str, value: int) -> None:
    """Set the integer leaf at a path, where its holder can be written."""
    for path, holder, key in _places(root, "", frozenset()):
        if path != wanted:
            continue
        if isinstance(holder, list) or (isinstance(holder, dict) and key in holder):
            holder[key] = value
        elif is_object(holder):
            vars(holder)[key] = value
        return


def _places(value: Any, path: str, seen: frozenset[int]) -> Iterator[tuple[str, Any, Any]]:
    """(path, holder, key) of every entry, with the paths of `values.leaves`."""
    if id(value) in seen:
        return
    seen = seen | {id(value)}
    entries: list[tuple[str, Any, Any]] = []
    if isinstance(value, (list, tuple)):
        entries = [(f"{path}[{index}]", index, item) for index, item in enumerate(value)]
    elif isinstance(value, dict):
        entries = [(f"{path}[{key!r}]", key, item) for key, item in value.items()]
    elif is_object(value):
        entries = [(f"{path}.{key}", key, item) for key, item in vars(value).items()]
    for below, key, item in entries:
        yield below, value, key
        yield from _places(item, below, seen)


def restrided(call: Call) -> Call | None:
    """The call with its activations in another memory layout (last two dimensions transposed in memory); None if it has none that wide."""
    listed = call.inputs()
    free = {id(listed[position][1]) for position in call.scale if listed[position][1].dim() >= 2}
    if not free:
        return None

    def swap(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if id(tensor) in free else tensor

    args, kwargs = replaced((call.args, call.kwargs), swap)
    return replace(call, args=args, kwargs=kwargs, origin=f"{call.origin}, other strides", regime="strides", notes={})
