"""Blend with its transposed weight where it belongs."""

import torch


def prepare(module):
    module.packed = module.weight.detach().t().contiguous()


def forward(module, state, x):
    return torch.tanh(torch.matmul(x, module.packed) + module.bias)
