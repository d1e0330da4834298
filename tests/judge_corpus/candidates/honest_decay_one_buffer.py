"""Decay with the scaled inputs made at once and every state written where it is returned."""

import torch


def prepare(module):
    keep = torch.sigmoid(module.rate.detach())
    return keep, 1.0 - keep


def forward(module, state, x, memory):
    keep, rest = state
    out = x * rest
    last = memory.state
    for step in range(x.shape[1]):
        last = out[:, step].addcmul_(last, keep)
    memory.state.copy_(last)
    memory.steps += x.shape[1]
    return out
