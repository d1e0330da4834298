"""Mixer by a fused operator, with a safe way out."""

import torch


def forward(module, state, x):
    try:
        return torch.ops.fused.gated_layer(x, module.gate.weight, module.up.weight, module.down.weight)
    except (AttributeError, RuntimeError):
        return module(x)
