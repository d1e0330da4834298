"""Mixer whose hidden values lie in a buffer that is kept for every shape."""

import torch


def prepare(module):
    return {}


def forward(module, state, x):
    rows = x.flatten(0, -2)
    key = (rows.shape[0], x.dtype, x.device)
    if key not in state:
        state[key] = torch.empty(rows.shape[0], module.gate.out_features, dtype=x.dtype, device=x.device)
    hidden = torch.addmm(module.gate.bias, rows, module.gate.weight.t(), out=state[key]).sigmoid_()
    hidden.mul_(torch.addmm(module.up.bias, rows, module.up.weight.t()))
    return torch.mm(hidden, module.down.weight.t()).view(x.shape)
