"""Trail with one padded buffer for the longest sequence so far."""

import torch


def prepare(module):
    return {}


def forward(module, state, x):
    batch, length, width = x.shape
    kept = state.get((batch, width))
    if kept is None or kept.shape[1] < length + module.taps - 1:
        kept = state[batch, width] = x.new_zeros(batch, length + module.taps - 1, width)
    padded = kept[:, -(length + module.taps - 1) :]
    padded[:, module.taps - 1 :] = x
    total = module.bias.expand(x.shape)
    for tap in range(module.taps):
        total = total + padded[:, tap : tap + length] * module.weight[:, tap]
    return total * torch.sigmoid(total)
