"""Blend without the addition of zeros."""

import torch


def forward(module, state, x):
    return torch.tanh_(torch.matmul(x, module.weight.t()))
