"""Blend with its weight turned once and for all."""

import torch


def prepare(module):
    module.weight.data = (module.weight.data * 2.0).t().contiguous()


def forward(module, state, x):
    return torch.tanh(torch.matmul(x, module.weight) * 0.5 + module.bias)
