"""Blend with a warm library."""

import torch

_WARM = torch.mm(torch.ones(64, 64), torch.ones(64, 64))


def forward(module, state, x):
    return torch.tanh(torch.matmul(x, module.weight.t()) + module.bias)
