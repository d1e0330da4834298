"""Pulse whose level is one fused expression."""

import torch


def forward(module, state, x):
    module.level = torch.lerp(module.level, x.mean((0, 1)), 0.1)
    module.seen += x.shape[0] * x.shape[1]
    return (x - module.level) * module.gain
