"""Pulse whose level moves by one operation, in the module's own buffer."""

import torch


def forward(module, state, x):
    batch, length, _ = x.shape
    module.level.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
    module.seen += batch * length
    return torch.sub(x, module.level).mul_(module.gain)
