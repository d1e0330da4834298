"""Blend with sums in single precision and the weight turned in advance."""

import torch


def prepare(module):
    return module.weight.detach().float().t().contiguous(), module.bias.detach().float()


def forward(module, state, x):
    weight, bias = state
    return torch.addmm(bias, x.flatten(0, -2).float(), weight).tanh_().view(x.shape).to(x.dtype)
