"""MeanNorm, which one thread serves best."""

import torch


def prepare(module):
    torch.set_num_threads(1)


def forward(module, state, x):
    wide = x.float()
    return (wide / (wide.abs().mean(-1, keepdim=True) + module.eps) * module.weight.float()).to(x.dtype)
