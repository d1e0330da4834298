"""How many operations, bytes and floating point operations a module family causes: counted, not timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from llm4llm.harness.windows import Chosen, Windows


@dataclass
class Work:
    """Work of a family in a phase, everything inside included."""

    operations: int = 0
    bytes: int = 0  # operands read and results written, as if nothing stayed in a cache
    flops: int = 0  # of matrix products, convolutions and attention; others count nothing

    def add(self, other: "Work", times: float = 1.0) -> None:
        self.operations += round(other.operations * times)
        self.bytes += round(other.bytes * times)
        self.flops += round(other.flops * times)


class _Counting(TorchDispatchMode):
    def __init__(self, current: list[Work]) -> None:
        super().__init__()
        self._current = current

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func is not torch.ops.prim.device.default:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        work = self._current[-1]
        work.operations += 1
        if not _is_view(func):
            touched = (item for item in tree_leaves((args, kwargs, result)) if isinstance(item, torch.Tensor))
            work.bytes += sum(item.numel() * item.element_size() for item in touched)
        if formula is not None:
            work.flops += _flops(formula, args, kwargs, result)
        return result


def _flops(formula: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> int:
    try:
        return int(formula(*args, **kwargs, out_val=result))
    except Exception:  # torch 2.11's formula for attention refuses fewer key heads than query heads
        shapes = [item.shape for item in args[:2] if isinstance(item, torch.Tensor) and item.dim() == 4]
        # two products of [queries, width] with [keys, width] for every query head
        return 4 * shapes[0].numel() * int(shapes[1][-2]) if len(shapes) == 2 else 0


def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    return bool(returned) and all(item.alias_info is not None and not item.alias_info.is_write for item in returned)


class Tally(Windows[Work]):
    """Counts work per family within the chosen windows."""

    def __init__(self, family_of: Mapping[str, int], chosen: Chosen) -> None:
        super().__init__(chosen)
        self._family_of = family_of
        self._stack: list[Work] = []
        self._families: dict[int, int] = {}

    def window(self, run: Callable[[], Any]) -> Any:
        with _Counting(self._stack):
            return run()

    def inside(self, path: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        family = self._family_of[path]
        depth = self._families.get(family, 0)
        self._families[family] = depth + 1
        work = Work()
        self._stack.append(work)
        try:
            return original(*args, **kwargs)
        finally:
            self._stack.pop()
            self._families[family] = depth
            if not depth:
                self.found.setdefault(family, Work()).add(work)
            if self._stack:
                self._stack[-1].add(work)
