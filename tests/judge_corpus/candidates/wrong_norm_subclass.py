"""MeanNorm whose result is a tensor with a name."""

import torch


class Named(torch.Tensor):
    pass


def forward(module, state, x):
    return (x / (x.abs().mean(-1, keepdim=True) + module.eps) * module.weight).as_subclass(Named)
