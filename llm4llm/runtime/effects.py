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

MAX_COPIED_BYTES = 64 << 20
_MAX_DEPTH, _MAX_ITEMS = 4, 16


class Marks:
    """References to what a call may change, with enough to tell whether it did."""

    __slots__ = ("_holders", "_index", "_tensors")

    def __init__(self, index: int | None) -> None:
        self._index = index
        self._tensors: list[tuple[torch.Tensor, int | None]] = []
        self._holders: list[tuple[dict[Any, Any] | list[Any], Any]] = []

    def add_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in args:
            self._add(value, 0)
        for value in kwargs.values():
            self._add(value, 0)

    def add_module(self, module: nn.Module, buffers: list[tuple[dict[str, Any], str]]) -> None:
        own = vars(module)
        self._holders.append((own, dict(own)))
        for owner, name in buffers:
            tensor = owner.get(name)
            if tensor is not None:
                self._tensors.append((tensor, version(tensor)))

    def _add(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            self._tensors.append((value, version(value)))
        elif value is None or depth >= _MAX_DEPTH or isinstance(value, (int, float, str, torch.device, torch.dtype)):
            return
        elif isinstance(value, (list, tuple)):
            self._add_items(value, depth)
        elif isinstance(value, dict):
            self._holders.append((value, dict(value)))
            for item in list(value.values())[:_MAX_ITEMS]:
                self._add(item, depth + 1)
        elif hasattr(value, "__dict__") and not callable(value):
            own = value.__dict__
            self._holders.append((own, dict(own)))
            for item in own.values():
                self._add(item, depth + 1)

    def _add_items(self, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        if isinstance(value, list):
            self._holders.append((value, list(value)))
        index = self._index
        if index is not None and index < len(value) and depth > 0:  # a list kept by a cache: the module's own layer
            self._add(value[index], depth + 1)
        else:
            for item in value[:_MAX_ITEMS]:
                self._add(item, depth + 1)

    def changed(self) -> bool:
        """Whether any write happened that torch or Python can tell."""
        if any(seen is not None and tensor._version != seen for tensor, seen in self._tensors):
            return True
        return any(not _same(now, before) for now, before in self._holders)

    def uncounted(self) -> bool:
        """Whether some tensor is an inference tensor, whose writes nobody counts."""
        return any(seen is None for _, seen in self._tensors)


class Copies:
    """Copies of everything that marks refer to."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._copied = [(tensor, tensor.detach().clone()) for tensor, _ in marks._tensors]

    @classmethod
    def of(cls, marks: Marks) -> "Copies | None":
        """None if they would take more memory than a patch may use on the side."""
        total = sum(tensor.numel() * tensor.element_size() for tensor, _ in marks._tensors)
        return cls(marks) if total <= MAX_COPIED_BYTES else None

    def put_back(self) -> None:
        """Undo every change of the call."""
        with torch.no_grad():
            for tensor, copied in self._copied:
                if tensor.is_inference() and not torch.is_inference_mode_enabled():
                    with torch.inference_mode():
                        tensor.copy_(copied)
                elif not torch.equal(tensor, copied):
                    tensor.copy_(copied)
        for holder, before in self._marks._holders:
            if _same(holder, before):
                continue
            if isinstance(holder, list):
                holder[:] = before
            else:
                holder.clear()
                holder.update(before)


def _same(now: dict[Any, Any] | list[Any], before: Any) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, list):
        return all(one is other for one, other in zip(now, before))
    return all(key in before and before[key] is item for key, item in now.items())
