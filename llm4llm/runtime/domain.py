"""The calls on which a candidate was shown correct, as JSON, and the guard that is derived from them.

A domain is a list of alternatives (empty cache or filled, with a mask or without). Within one alternative sizes and integers span a range
from the least to the largest seen, and sizes that were equal in every observed call must be equal.
"""

import json
from collections.abc import Sequence
from typing import Any

from .guard import Guard, compile_guard
from .observation import observe

__all__ = ["Guard", "compile_guard", "merge", "observe"]
DOMAIN_VERSION = 1


def merge(observations: Sequence[dict[str, Any]], effects: bool | None = None) -> dict[str, Any]:
    """The proven domain that a set of observed calls spans; JSON-able.

    `effects`: whether the original changes anything that it can reach (cache, argument, module state); None if nobody looked.
    """
    regimes: dict[str, list[dict[str, Any]]] = {}
    for observation in observations:
        regimes.setdefault(_regime(observation), []).append(observation)
    return {"schema_version": DOMAIN_VERSION, "effects": effects, "alternatives": [_alternative(calls) for calls in regimes.values()]}


def _regime(observation: dict[str, Any]) -> str:
    """Everything of an observation that must be met exactly."""
    spanned = ("sizes", "layouts", "range")
    slots = []
    for path, fact in observation["slots"]:
        slots.append([path, len(fact.get("sizes", ())), {key: value for key, value in fact.items() if key not in spanned}])
    return json.dumps([observation["positional"], observation["keywords"], observation["ambient"], slots], sort_keys=True)


def _alternative(calls: list[dict[str, Any]]) -> dict[str, Any]:
    first = calls[0]
    slots = [[path, _hull([call["slots"][at][1] for call in calls])] for at, (path, _) in enumerate(first["slots"])]
    return {**first, "slots": slots, "equal": _equalities(calls), "calls": len(calls)}


def _hull(facts: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(facts[0])
    if merged["kind"] == "tensor":
        merged["sizes"] = [_span([fact["sizes"][axis] for fact in facts]) for axis in range(len(merged["sizes"]))]
        merged["layouts"] = sorted({layout for fact in facts for layout in fact["layouts"]})
    elif merged["kind"] == "int":
        merged["range"] = _span([fact["range"] for fact in facts])
    return merged


def _span(ranges: list[list[int]]) -> list[int]:
    return [min(low for low, _ in ranges), max(high for _, high in ranges)]


def _equalities(calls: list[dict[str, Any]]) -> list[list[list[Any]]]:
    """Groups of [path, axis] whose sizes vary and were the same in every call."""
    groups: dict[tuple[int, ...], list[list[Any]]] = {}
    for at, (path, fact) in enumerate(calls[0]["slots"]):
        for axis in range(len(fact.get("sizes", ()))):
            sizes = tuple(call["slots"][at][1]["sizes"][axis][0] for call in calls)
            if len(set(sizes)) > 1:
                groups.setdefault(sizes, []).append([path, axis])
    return [group for group in groups.values() if len(group) > 1]
