"""Nested values again: copies that share one memo, bit-wise comparison, and identity between a result and later arguments."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from llm4llm.harness import values
from llm4llm.harness.workload import Returned

_CONTAINERS = (list, tuple, dict)


class Copies:
    """Copies of several values with sharing kept between them; inference tensors become ordinary ones.

    An object that `memo` knows is replaced by what the memo holds for it: {id(original): (replacement, original)}.
    """

    def __init__(self, *sources: Any, memo: dict[int, Any] | None = None) -> None:
        self.memo: dict[int, Any] = {} if memo is None else memo
        found = [tensor for source in sources for tensor in values.tensors(source)]
        self._copy = values.tensor_copier(found)

    def of(self, value: Any) -> Any:
        """Raises values.NotReplayable for what can't be copied."""
        with torch.inference_mode(False), torch.no_grad():
            return values.replaced(value, self._copy, self.memo)


def nodes(value: Any, path: str = "", _seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """(path, node) of a nested value: containers and objects as well as leaves; paths are those of values.leaves."""
    yield path, value
    if isinstance(value, (torch.Tensor, nn.Module, type)) or id(value) in _seen:
        return
    seen = _seen | {id(value)}
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from nodes(item, f"{path}[{index}]", seen)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from nodes(item, f"{path}[{key!r}]", seen)
    elif values.is_object(value):
        for key, item in vars(value).items():
            yield from nodes(item, f"{path}.{key}", seen)


def returned_at(result: Any, step: int, wanted: set[tuple[int, str]]) -> dict[tuple[int, str], Any]:
    """What lies at the wanted paths of a step's result."""
    if not any(number == step for number, _ in wanted):
        return {}
    return {(step, path): node for path, node in nodes(result) if (step, path) in wanted}


def resolved(value: Any, found: dict[tuple[int, str], Any], _seen: set[int] | None = None) -> Any:
    """`value` (a private copy, changed in place) with every Returned replaced by what was found for it."""
    seen = set() if _seen is None else _seen
    if isinstance(value, Returned):
        return found[(value.step, value.path)]
    if id(value) in seen or isinstance(value, (torch.Tensor, nn.Module, type)):
        return value
    seen.add(id(value))
    if isinstance(value, tuple):
        items = [resolved(item, found, seen) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        value[:] = [resolved(item, found, seen) for item in value]
    elif isinstance(value, dict):
        for key in list(value):
            dict.__setitem__(value, key, resolved(value[key], found, seen))
    if values.is_object(value):
        for key, item in list(vars(value).items()):
            vars(value)[key] = resolved(item, found, seen)
    return value


def same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bit-wise equality with equal type, shape, strides and device; False where bits can't be compared."""
    if left is right:
        return True
    facts: Callable[[torch.Tensor], Any] = lambda t: (type(t), t.dtype, t.shape, t.device, t.layout, t.requires_grad)  # noqa: E731
    if facts(left) != facts(right) or left.layout is not torch.strided or left.stride() != right.stride():
        return False
    if left.device.type == "meta" or left.is_quantized:
        return False
    with torch.inference_mode(False), torch.no_grad():
        # a copy first: views with odd strides refuse to be seen as bytes
        plain = [tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) for tensor in (left, right)]
        bits = [tensor.reshape(-1).view(torch.uint8) for tensor in plain]
        return torch.equal(bits[0], bits[1])


def equal(left: Any, right: Any, _seen: set[tuple[int, int]] | None = None) -> bool:
    """True if two nested values are of the same shape all the way down and hold equal leaves; opaque objects are equal if `==` says so."""
    if left is right:
        return True
    seen = set() if _seen is None else _seen
    if (id(left), id(right)) in seen:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return same_tensor(left, right)
    if isinstance(left, nn.Module):
        return False
    inner = functools.partial(equal, _seen=seen)
    if isinstance(left, _CONTAINERS) or values.is_object(left):
        seen.add((id(left), id(right)))
        return _equal_parts(left, right, inner)
    try:
        return bool(left == right)
    except Exception:
        return False


def _equal_parts(left: Any, right: Any, inner: Callable[[Any, Any], bool]) -> bool:
    if isinstance(left, (list, tuple)) and not (len(left) == len(right) and all(map(inner, left, right))):
        return False
    if isinstance(left, dict) and not (left.keys() == right.keys() and all(inner(left[key], right[key]) for key in left)):
        return False
    if not values.is_object(left):
        return True
    mine, other = vars(left), vars(right)
    return mine.keys() == other.keys() and all(inner(mine[key], other[key]) for key in mine)
