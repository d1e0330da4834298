"""Decay with the state in a local variable."""

import torch


def forward(module, state, x, memory):
    keep = torch.sigmoid(module.rate)
    last, out = memory.state, []
    for step in range(x.shape[1]):
        last = last * keep + (1.0 - keep) * x[:, step]
        out.append(last)
    memory.steps += x.shape[1]
    return torch.stack(out, 1)
