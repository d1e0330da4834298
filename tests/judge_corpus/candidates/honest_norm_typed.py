"""MeanNorm with everything that a tidy file may have around its few lines of work."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

SCALES: tuple[float, ...] = tuple(math.sqrt(number) for number in range(4))
_HALF = torch.finfo(torch.float32).eps / 2


class Plan(NamedTuple):
    """What forward needs: the weight and the eps, both for sums instead of means."""

    weight: torch.Tensor
    eps: float


def prepare(module: torch.nn.Module) -> Plan:
    width = module.weight.shape[0]
    return Plan(module.weight.detach().float() * width, float(module.eps) * width)


def forward(module: torch.nn.Module, state: Plan, x: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
    wide = x.float()
    return torch.div(wide, wide.abs().sum(-1, keepdim=True) + state.eps).mul_(state.weight).to(x.dtype)


if __name__ == "__main__":
    print(forward.__doc__)
