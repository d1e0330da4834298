"""Nudge with the factor inside of the addition."""

import torch
from torch.nn import functional


def forward(module, state, x):
    layer = module.layer
    return torch.add(x, functional.linear(x, layer.weight, layer.bias).tanh_(), alpha=module.gain)
