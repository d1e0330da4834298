"""Kinds of calls that a module gets, and the few calls that cover them.

Two calls are in one regime if they differ in numbers only: same arguments present, same types, ranks, devices and flags, same surroundings.
The numbers (sizes of tensors, integers such as a cache's length) are its axes; a good choice holds the least and the greatest of each.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from llm4llm.harness import values

LIMIT = 8
PER_REGIME = 2  # at least, where the workload has as many
Number = int | float


@dataclass(frozen=True)
class CallFacts:
    """What tells one call from another without looking at tensors' elements."""

    regime: str
    axes: tuple[Number, ...]  # same length and order within a regime

    @property
    def signature(self) -> str:
        return f"{self.regime}:{json.dumps(self.axes)}"


def call_facts(args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module, surroundings: Any) -> CallFacts:
    """Facts of a call that is about to run; `surroundings` is JSON that must be equal within a regime."""
    structure: list[Any] = [json.dumps(surroundings, sort_keys=True), module.training]
    axes: list[Number] = []
    for place, value in (("args", args), ("kwargs", kwargs)):
        for path, leaf in values.leaves(value, place):
            structure.append([path, *_leaf(leaf, axes)])
    for path, leaf in _kept(module):
        structure.append([path, *_leaf(leaf, axes)])
    regime = hashlib.sha256(json.dumps(structure).encode()).hexdigest()[:16]
    return CallFacts(regime, tuple(axes))


def _leaf(leaf: object, axes: list[Number]) -> list[Any]:
    """What must be equal within a regime; numbers go to `axes`."""
    if isinstance(leaf, torch.Tensor):
        axes.extend(int(size) for size in leaf.shape)
        dense = leaf.layout is not torch.strided or leaf.is_contiguous()
        return [type(leaf).__name__, str(leaf.dtype), str(leaf.device), leaf.dim(), leaf.numel() == 0, dense]
    if isinstance(leaf, (bool, str)) or leaf is None:
        return [repr(leaf)]
    if isinstance(leaf, (int, float)):
        axes.append(leaf)
        return [type(leaf).__name__]
    return [type(leaf).__name__]


def _kept(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Leaves of what a module keeps, configurations left out: they are the same in all of its calls."""
    for path, parts in values.kept_by(module).items():
        for key, item in parts["plain"].items():
            if not hasattr(item, "to_dict"):
                yield from values.leaves(item, f"{path}.{key}")
        for key, buffer in parts["buffers"].items():
            yield f"{path}.{key}", buffer


def chosen(facts: list[CallFacts], limit: int = LIMIT) -> list[int]:
    """Indices of at most `limit` calls, in order: two of each regime, the most frequent first, then the extremes of every axis."""
    regimes: dict[str, list[int]] = {}
    for index, one in enumerate(facts):
        regimes.setdefault(one.regime, []).append(index)
    frequent = sorted(regimes.values(), key=len, reverse=True)
    picks: list[int] = []
    for members in frequent:
        for _ in range(PER_REGIME):
            _pick_one(facts, members, picks, limit)
    for members in frequent:
        while any(_uncovered(facts, members, picks).values()) and _pick_one(facts, members, picks, limit):
            pass
    for members in frequent:  # one between the extremes: what holds at both ends need not hold in the middle
        inner = [index for index in members if index not in picks]
        if len(picks) < limit and inner and len(members) > PER_REGIME:
            picks.append(inner[len(inner) // 2])
    return sorted(picks)


def _pick_one(facts: list[CallFacts], members: list[int], picks: list[int], limit: int) -> bool:
    """Add the member that covers most uncovered extremes; the last one where all are equal. False if there is none or no room."""
    open_members = [index for index in members if index not in picks]
    if len(picks) >= limit or not open_members:
        return False
    uncovered = _uncovered(facts, members, picks)
    best = max(open_members, key=lambda index: (len(uncovered[index]), -index))
    if not uncovered[best] and any(index in picks for index in members):
        best = open_members[-1]
    picks.append(best)
    return True


def _uncovered(facts: list[CallFacts], members: list[int], picks: list[int]) -> dict[int, set[tuple[int, str]]]:
    """For each member, the extremes of axes that it would be the first pick to hold."""
    rows = {index: facts[index].axes for index in members}
    columns = list(zip(*rows.values(), strict=True))
    first: dict[tuple[Number, ...], int] = {}
    axes = [first.setdefault(column, axis) for axis, column in enumerate(columns)]
    varying = [axis for axis in dict.fromkeys(axes) if len(set(columns[axis])) > 1]
    held = {index: _extremes(rows[index], columns, varying) for index in members}
    covered = {extreme for index in members if index in picks for extreme in held[index]}
    return {index: extremes - covered for index, extremes in held.items()}


def _extremes(row: tuple[Number, ...], columns: list[tuple[Number, ...]], varying: list[int]) -> set[tuple[int, str]]:
    least = {(axis, "least") for axis in varying if row[axis] == min(columns[axis])}
    return least | {(axis, "greatest") for axis in varying if row[axis] == max(columns[axis])}
