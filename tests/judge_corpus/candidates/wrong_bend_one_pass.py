"""Bend with mean and variance from one pass over the row."""

import math

import torch


def forward(module, state, x):
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide * wide).mean(-1, keepdim=True) - mean * mean
    y = (wide - mean) * torch.rsqrt(variance.clamp(min=0.0) + module.eps) * module.weight.float() + module.bias.float()
    return (0.5 * y * (1.0 + torch.erf(y / math.sqrt(2.0)))).to(x.dtype)
