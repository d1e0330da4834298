"""Mixer with two result buffers: one is read while the other is written."""

import torch


def prepare(module):
    return {"turn": 0}


def forward(module, state, x):
    state["turn"] = 1 - state["turn"]
    key = (state["turn"], *x.shape)
    if key not in state:
        state[key] = torch.empty_like(x)
    hidden = torch.sigmoid(module.gate(x)).mul_(module.up(x))
    return torch.mm(hidden.flatten(0, -2), module.down.weight.t(), out=state[key].flatten(0, -2)).view(x.shape)
