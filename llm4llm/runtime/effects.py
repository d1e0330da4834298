"""What a call may change, so that a patched forward that raises is never followed by the original applying the same change again.

Marks cost about a microsecond and are taken before every call of a patch whose original has effects. They notice writes that torch counts
(tensor versions) and anything put into a cache's or the module's dict. Kernels launched by Triton write without being counted, so marks
alone can't clear a patch that uses Triton; its first call on each module, the one on which compilation and launch errors surface, is
therefore preceded by a copy that can be put back.
"""

from typing import Any

import torch
from torch import nn

from .weights import version

MAX_COPIED_BYTES = 256 << 20  # on the host; on a GPU a quarter of what is free, if that is more
_MAX_DEPTH, _MAX_ITEMS = 4, 16
_FIXED = frozenset([type(None), bool, int, float, str, type, torch.dtype, torch.device])


class Marks:
    """References to what a call may change, with enough to tell whether it did."""

    __slots__ = ("_index", "holders", "tensors")

    def __init__(self, index: int | None) -> None:
        self._index = index
        self.tensors: list[tuple[torch.Tensor, int | None]] = []
        self.holders: list[tuple[dict[Any, Any] | list[Any], tuple[Any, ...]]] = []

    def add_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if type(value) not in _FIXED:
                self._add(value, 0)

    def add_module(self, module: nn.Module, buffers: list[tuple[dict[str, Any], str]]) -> None:
        own = module.__dict__
        self.holders.append((own, tuple(own.values())))
        for owner, name in buffers:
            tensor = owner.get(name)
            if tensor is not None:
                self.tensors.append((tensor, version(tensor)))

    def _add(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.append((value, None if value.is_inference() else value._version))
        elif depth >= _MAX_DEPTH:
            return
        elif isinstance(value, (list, tuple)):
            self._add_items(value, depth)
        elif isinstance(value, dict):
            self._add_holder(value, depth)
        elif not callable(value) and hasattr(value, "__dict__"):
            self._add_holder(value.__dict__, depth)

    def _add_holder(self, holder: dict[Any, Any], depth: int) -> None:
        values = tuple(holder.values())
        self.holders.append((holder, values))
        for item in values:
            if type(item) not in _FIXED:
                self._add(item, depth + 1)

    def _add_items(self, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        if isinstance(value, list):
            self.holders.append((value, tuple(value)))
        index = self._index
        if index is not None and index < len(value) and depth > 0:  # a list kept by a cache: the module's own layer
            self._add(value[index], depth + 1)
        else:
            for item in value[:_MAX_ITEMS]:
                self._add(item, depth + 1)

    def changed(self) -> bool:
        """Whether any write happened that torch or Python can tell."""
        if any(seen is not None and tensor._version != seen for tensor, seen in self.tensors):
            return True
        return any(not _same(holder, before) for holder, before in self.holders)

    def uncounted(self) -> bool:
        """Whether some tensor is an inference tensor, whose writes nobody counts."""
        return any(seen is None for _, seen in self.tensors)


class Copies:
    """Copies of everything that marks refer to."""

    def __init__(self, marks: Marks) -> None:
        self._copied = [(tensor, tensor.detach().clone()) for tensor, _ in marks.tensors]
        self._holders = [(holder, before, list(holder) if isinstance(holder, dict) else []) for holder, before in marks.holders]

    @classmethod
    def of(cls, marks: Marks) -> "Copies | None":
        """None if they would take more memory than a patch may use on the side."""
        total = sum(tensor.numel() * tensor.element_size() for tensor, _ in marks.tensors)
        limit = MAX_COPIED_BYTES
        if total > limit and any(tensor.is_cuda for tensor, _ in marks.tensors):
            limit = max(limit, torch.cuda.mem_get_info()[0] // 4)
        return cls(marks) if total <= limit else None

    def put_back(self) -> None:
        """Undo every change of the call."""
        with torch.no_grad():
            for tensor, copied in self._copied:
                if not torch.equal(tensor, copied):
                    with torch.inference_mode(tensor.is_inference()):
                        tensor.copy_(copied)
        for holder, before, keys in self._holders:
            if _same(holder, before):
                continue
            if isinstance(holder, list):
                holder[:] = before
            else:
                holder.clear()
                holder.update(zip(keys, before))


def _same(now: dict[Any, Any] | list[Any], before: tuple[Any, ...]) -> bool:
    values = now.values() if isinstance(now, dict) else now
    return len(values) == len(before) and all(one is other for one, other in zip(values, before))
