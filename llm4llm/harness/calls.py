"""One call of the module under judgement: its inputs, and what may be done with them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from llm4llm.harness.values import leaves, replaced, snapshot

_FACTORS = 997  # different factors of one weight; a prime, so that rows do not get the same ones


@dataclass(frozen=True, eq=False)
class Call:
    """Inputs of one call; never run in place: take `fresh` first.

    `origin` says in words where the inputs come from; `source` is the index of the captured call that they were made from.
    `scale` holds the positions (in the walking order of args, kwargs) of tensors whose values are free.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kept: dict[str, Any]
    rng: Any
    phase: str
    origin: str
    source: int
    regime: str
    scale: tuple[int, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict, repr=False)

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """Copies of args, kwargs and kept that share memory among themselves as the inputs do, and with nothing else."""
        args, kwargs, kept = snapshot((self.args, self.kwargs, self.kept))
        return args, kwargs, kept

    def inputs(self) -> list[tuple[str, torch.Tensor]]:
        """(path, tensor) of the arguments in walking order."""
        found = leaves({"args": self.args, "kwargs": self.kwargs})
        return [(path, leaf) for path, leaf in found if isinstance(leaf, torch.Tensor)]

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor], origin: str, regime: str) -> "Call":
        """The same call with every tensor whose values are free replaced by change(tensor), laid out as before."""
        listed = self.inputs()
        free = {id(listed[position][1]): listed[position][1] for position in self.scale}
        made = {key: laid_out(change(tensor), tensor) for key, tensor in free.items()}
        twin: dict[int, torch.Tensor] = {}

        def swap(tensor: torch.Tensor) -> torch.Tensor:
            return twin.setdefault(id(tensor), made.get(id(tensor), tensor))

        args, kwargs = replaced((self.args, self.kwargs), swap)
        return replace(self, args=args, kwargs=kwargs, origin=f"{self.origin}, {origin}", regime=regime, notes={})

    def message(self) -> dict[str, Any]:
        """What a candidate process gets of it."""
        return {"args": self.args, "kwargs": self.kwargs, "kept": self.kept, "rng": self.rng, "scale": self.scale}

    def shapes(self) -> str:
        """The shapes of the tensor arguments, for people: `[2, 7, 120] float32, [2, 7] int64`."""
        said = [f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for _, tensor in self.inputs()]
        return ", ".join(said[:6]) + (f" and {len(said) - 6} more" if len(said) > 6 else "")

    def elements(self) -> int:
        return sum(tensor.numel() for _, tensor in self.inputs())


def seed(rng: Any) -> None:
    """Put the process's random generators into a recorded state; None leaves them alone."""
    if rng is not None:
        rng.restore()


def reweight(module: nn.Module, most: float) -> None:
    """Multiply every floating weight in place by factors between 1 and `most`, the same ones in every process.

    Neighbours get different factors, or a weight that is symmetric would stay so; where all is zero, as new biases are, a little is added.
    """
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            if not weight.is_floating_point() or not weight.numel():
                continue
            few = torch.rand(_FACTORS, generator=source)
            share = few.to(weight.device).repeat(weight.numel() // _FACTORS + 1)[: weight.numel()].view(weight.shape)
            if bool(weight.data.any()):
                weight.data.mul_((1.0 + (most - 1.0) * share).to(weight.dtype))
            else:
                weight.data.add_((0.2 * (share - 0.5)).to(weight.dtype))


def laid_out(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`values` in memory laid out as `like` is: the same order of dimensions, the same gaps, the same expanded dimensions.

    The two have the same rank; sizes may differ, then gaps keep their proportion.
    """
    values = values.to(like.dtype)
    with torch.no_grad():
        if values.shape == like.shape and like.is_contiguous():
            return values.contiguous() if values.is_contiguous() else values.clone(memory_format=torch.contiguous_format)
        stride = _strides(tuple(values.shape), tuple(like.shape), tuple(like.stride()))
        made = torch.empty_strided(values.shape, stride, dtype=values.dtype, device=values.device)
        if made.numel():
            expanded = tuple(
                slice(0, 1) if step == 0 and size > 1 else slice(None) for step, size in zip(stride, values.shape, strict=True)
            )
            made[expanded].copy_(values[expanded])
        return made


def _strides(shape: tuple[int, ...], old_shape: tuple[int, ...], old_stride: tuple[int, ...]) -> tuple[int, ...]:
    """Strides for `shape` in the layout of another tensor of the same rank."""
    stride = [0] * len(shape)
    order = sorted((dim for dim in range(len(shape)) if old_stride[dim]), key=lambda dim: (old_stride[dim], old_shape[dim] > 1, -dim))
    old_extent = extent = 1
    for dim in order:
        if old_shape[dim] == 1:
            # a stride that means nothing says nothing of gaps
            stride[dim] = extent
        else:
            stride[dim] = max(extent, round(extent * old_stride[dim] / old_extent))
            old_extent = old_stride[dim] * max(old_shape[dim], 1)
        extent = stride[dim] * max(shape[dim], 1)
    return tuple(stride)
