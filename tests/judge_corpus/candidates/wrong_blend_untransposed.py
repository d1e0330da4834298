"""Blend as one matrix product with the bias in it."""

import torch


def forward(module, state, x):
    return torch.addmm(module.bias, x.flatten(0, -2), module.weight).tanh_().view(x.shape)
