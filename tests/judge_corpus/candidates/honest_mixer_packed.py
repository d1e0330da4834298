"""Mixer with the two input projections stacked and the product formed in its own buffer."""

import torch
from torch.nn import functional


def prepare(module):
    parts = (module.gate, module.up)
    return torch.cat([part.weight for part in parts]).detach(), torch.cat([part.bias for part in parts]).detach()


def forward(module, state, x):
    gate, up = functional.linear(x, *state).chunk(2, -1)
    return functional.linear(gate.sigmoid().mul_(up), module.down.weight)
