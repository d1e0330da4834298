"""Mixer by a fused operator where the library has one, and by its parts elsewhere."""

import torch
from torch.nn import functional


def prepare(module):
    try:
        return torch.ops.fused.gated_layer
    except AttributeError:
        return None


def forward(module, state, x):
    if state is not None:
        return state(x, module.gate.weight, module.up.weight, module.down.weight)
    gate = functional.linear(x, module.gate.weight, module.gate.bias)
    return functional.linear(functional.sigmoid(gate) * functional.linear(x, module.up.weight, module.up.bias), module.down.weight)
