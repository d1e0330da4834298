"""MeanNorm into a buffer kept from call to call, so that nothing is allocated."""

import torch


def prepare(module):
    return {}


def forward(module, state, x):
    key = tuple(x.shape)
    if key not in state:
        state[key] = torch.empty_like(x)
    return torch.mul(x / (x.abs().mean(-1, keepdim=True) + module.eps), module.weight, out=state[key])
