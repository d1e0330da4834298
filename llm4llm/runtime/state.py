"""What an object argument (a cache, mostly) holds for one module, in words that do not depend on how full it is.

Of an object with a `layers` list, a module that carries an index sees its own layer only; older caches keep lists or dicts by layer
number, and those are narrowed alike. Tensors count as filled or empty, integers as zero or not: enough to tell an empty cache from a
filled one, and too little to tell two lengths apart, so that a decode patch holds for every length. Reading never touches tensor values.
"""

from collections.abc import Callable
from typing import Any

import torch

from .signature import qualified_name

_MAX_ATTRIBUTES, _MAX_ITEMS, _MAX_DEPTH = 48, 8, 4
Test = Callable[[Any], bool]


def object_state(value: Any, index: int | None) -> dict[str, Any]:
    """JSON-able state of an object as a module with that index sees it."""
    return {"class": qualified_name(type(value)), "attributes": _attributes(value, index, 0)}


def compile_state(state: dict[str, Any], index: int | None) -> Test:
    """A test whether an object is in this state."""
    return _object_test(state, index)


def _attributes(value: Any, index: int | None, depth: int) -> dict[str, Any]:
    own = getattr(value, "__dict__", None) or {}
    return {key: _fact(item, index, depth) for key, item in list(own.items())[:_MAX_ATTRIBUTES]}


def _fact(value: Any, index: int | None, depth: int) -> Any:
    """A JSON value: null, true/false, or a string or object with a `kind`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"kind": "int", "zero": value == 0}
    if isinstance(value, str):
        return {"kind": "str", "value": value}
    if isinstance(value, torch.dtype):
        return {"kind": "dtype", "value": str(value)}
    if isinstance(value, torch.Tensor):
        return _tensor_fact(value)
    if isinstance(value, (list, tuple)):
        return {"kind": "list", "item": _picked_fact(_picked(value, index), depth), "zero": len(value) == 0}
    if isinstance(value, dict):
        return _dict_fact(value, index, depth)
    if hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value) and depth < _MAX_DEPTH:
        return {"kind": "object", "class": qualified_name(type(value)), "attributes": _attributes(value, index, depth + 1)}
    return {"kind": "other", "class": qualified_name(type(value))}


def _tensor_fact(value: torch.Tensor) -> dict[str, Any]:
    if value.numel() == 0:
        return {"kind": "tensor", "filled": False}
    return {"kind": "tensor", "filled": True, "dtype": str(value.dtype), "rank": value.dim(), "device": value.device.type}


def _picked_fact(picked: Any, depth: int) -> Any:
    # below a layer's own item no index narrows any further: its dicts are numbered by state, not by layer
    return _fact(picked, None, depth + 1) if depth < _MAX_DEPTH else None


def _picked(items: Any, index: int | None) -> Any:
    """The item that a module with this index looks at: its own, None if it is not there yet; the first one without an index."""
    at = 0 if index is None else index
    return items[at] if at < len(items) else None


def _dict_fact(value: dict[Any, Any], index: int | None, depth: int) -> dict[str, Any]:
    if index is not None and value and all(type(key) is int for key in list(value)[:_MAX_ITEMS]):
        return {"kind": "by_layer", "item": _picked_fact(value.get(index), depth)}
    if depth >= _MAX_DEPTH:
        return {"kind": "other", "class": qualified_name(type(value))}
    items = [[key, _fact(item, index, depth + 1)] for key, item in list(value.items())[:_MAX_ITEMS] if isinstance(key, (str, int))]
    return {"kind": "dict", "items": items, "zero": len(value) == 0}


def _object_test(state: dict[str, Any], index: int | None) -> Test:
    name = state["class"]
    tests = [(key, _test(fact, index)) for key, fact in state["attributes"].items()]
    named = _named(name)

    def test(value: Any) -> bool:
        if not named(type(value)):
            return False
        try:
            own = value.__dict__
        except AttributeError:
            return not tests
        for key, check in tests:
            try:
                item = own[key]
            except KeyError:
                return False
            if not check(item):
                return False
        return len(own) == len(tests) or len(tests) == _MAX_ATTRIBUTES

    return test


def _named(name: str) -> Callable[[type], bool]:
    """A test of a class by name, which compares names once per class and then identities."""
    known: type | None = None

    def test(kind: type) -> bool:
        nonlocal known
        if kind is known:
            return True
        if qualified_name(kind) != name:
            return False
        known = kind
        return True

    return test


def _test(fact: Any, index: int | None) -> Test:
    if fact is None or isinstance(fact, bool):
        return lambda value: value is fact
    return _TESTS[fact["kind"]](fact, index)


def _int_test(fact: dict[str, Any], index: int | None) -> Test:
    zero = fact["zero"]
    return lambda value: isinstance(value, int) and (value == 0) is zero


def _str_test(fact: dict[str, Any], index: int | None) -> Test:
    wanted = fact["value"]
    return lambda value: value == wanted


def _dtype_test(fact: dict[str, Any], index: int | None) -> Test:
    wanted = getattr(torch, fact["value"].removeprefix("torch."))
    return lambda value: value is wanted


def _tensor_test(fact: dict[str, Any], index: int | None) -> Test:
    if not fact["filled"]:
        return lambda value: isinstance(value, torch.Tensor) and value.numel() == 0
    dtype, rank, device = getattr(torch, fact["dtype"].removeprefix("torch.")), fact["rank"], fact["device"]

    def test(value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.dtype is not dtype or value.dim() != rank:
            return False
        return value.numel() > 0 and value.device.type == device

    return test


def _list_test(fact: dict[str, Any], index: int | None) -> Test:
    zero, check, at = fact["zero"], _test(fact["item"], None), 0 if index is None else index

    def test(value: Any) -> bool:
        if not isinstance(value, (list, tuple)) or (not value) is not zero:
            return False
        return check(value[at] if at < len(value) else None)

    return test


def _by_layer_test(fact: dict[str, Any], index: int | None) -> Test:
    check = _test(fact["item"], None)
    return lambda value: isinstance(value, dict) and check(value.get(index))


def _dict_test(fact: dict[str, Any], index: int | None) -> Test:
    zero = fact["zero"]
    tests = [(key, _test(item, index)) for key, item in fact["items"]]

    def test(value: Any) -> bool:
        if not isinstance(value, dict) or (not value) is not zero:
            return False
        return all(key in value and check(value[key]) for key, check in tests)

    return test


def _other_test(fact: dict[str, Any], index: int | None) -> Test:
    named = _named(fact["class"])
    return lambda value: named(type(value))


_TESTS: dict[str, Callable[[dict[str, Any], int | None], Test]] = {
    "int": _int_test,
    "str": _str_test,
    "dtype": _dtype_test,
    "tensor": _tensor_test,
    "list": _list_test,
    "by_layer": _by_layer_test,
    "dict": _dict_test,
    "object": _object_test,
    "other": _other_test,
}
