"""Blend with its rows at a wide stride."""

import torch


def forward(module, state, x):
    y = torch.tanh(torch.matmul(x, module.weight.t()) + module.bias)
    return torch.as_strided(y, y.shape, (1 << 40, 1 << 20, 1)).contiguous()
