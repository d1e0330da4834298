"""MeanNorm with one reciprocal per row instead of a division per element."""

import torch


def prepare(module):
    return module.weight.detach().float() * module.weight.shape[0]


def forward(module, state, x):
    wide = x.float()
    total = wide.abs().sum(-1, keepdim=True).add_(module.eps * wide.shape[-1])
    return (wide * torch.reciprocal(total)).mul_(state).to(x.dtype)
