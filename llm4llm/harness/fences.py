"""Fences around the memory that kernels see: what a candidate writes beside a tensor shows, what it reads there is NaN.

A kernel gets addresses, not tensors, so nothing stops it beyond the last element. On a GPU most such writes land in other tensors of the
pool and go unnoticed; on a CPU they may end the process, some calls later.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from llm4llm.harness.portrait import storages

_BYTES = 1 << 14  # on each side
_MAKES = frozenset(
    [
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *(f"{prefix}{kind}" for kind in ("zeros", "ones", "full") for prefix in ("", "new_")),
        *("zeros_like", "ones_like", "full_like"),
    ]
)


class Fences:
    """Tensors that were put into larger memory. `broken` says whose surroundings were written to."""

    def __init__(self) -> None:
        self._fenced: list[tuple[str, torch.Tensor, int, int]] = []

    def around(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The same tensor in memory with a fence on both sides; as it is where that can't be."""
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or not tensor.numel() or tensor.device.type == "meta":
            return tensor
        if tensor.requires_grad or tensor.element_size() < 1 or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return tensor
        extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        margin = _BYTES // tensor.element_size()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            base = torch.empty(extent + 2 * margin, dtype=tensor.dtype, device=tensor.device)
            base.fill_(_mark(tensor.dtype))
            # no view of the larger one: autograd would forbid to write into it
            inner = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            inner.set_(base.untyped_storage(), margin, tensor.shape, tensor.stride())
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            once = tuple(slice(0, 1) if step == 0 and size > 1 else slice(None) for size, step in steps)
            inner[once].copy_(tensor[once])
        self._fenced.append((name, base, margin, extent))
        return inner

    def around_arguments(self, args: Any, kwargs: Any, others: list[torch.Tensor]) -> tuple[Any, Any]:
        """The arguments with their own tensors fenced; `others` can be reached too, and what shares memory stays where it is."""
        counts: dict[int, int] = {}
        for _, place in storages(others):
            counts[place] = counts.get(place, 0) + 1

        def one(item: Any, name: str) -> Any:
            alone = type(item) is torch.Tensor and any(counts[place] == 1 for _, place in storages([item]))
            return self.around(item, name) if alone else item

        listed = tuple(one(item, f"args[{index}]") for index, item in enumerate(args))
        return listed, {key: one(item, f"kwargs[{key!r}]") for key, item in kwargs.items()}

    def broken(self) -> str | None:
        """Which tensor was written past, in words."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for name, base, margin, extent in self._fenced:
                for side, part in (("before the first element", base[:margin]), ("behind the last element", base[margin + extent :])):
                    if not _intact(part):
                        return f"it writes {side} of {name}"
        return None


def _mark(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _intact(part: torch.Tensor) -> bool:
    if part.is_floating_point() or part.is_complex():
        return bool(part.isnan().all())
    return bool((part == _mark(part.dtype)).all())


class _Making(TorchFunctionMode):
    """Puts a fence around every tensor that Python code makes."""

    def __init__(self, fences: Fences) -> None:
        super().__init__()
        self._fences = fences

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name not in _MAKES or torch.compiler.is_compiling():
            return made
        return self._fences.around(made, f"a tensor made by {name}")


@contextmanager
def fenced(fences: Fences | None) -> Iterator[None]:
    """Fence what is made inside; None does nothing."""
    if fences is None:
        yield
        return
    with _Making(fences):
        yield
