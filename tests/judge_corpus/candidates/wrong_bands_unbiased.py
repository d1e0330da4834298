"""Bands with the library's mean and variance in one call."""

import torch


def forward(module, state, x):
    wide = x.float().reshape(x.shape[0], module.groups, -1)
    variance, mean = torch.var_mean(wide, -1, keepdim=True)
    wide = ((wide - mean) * torch.rsqrt(variance + module.eps)).view(x.shape)
    return (wide * module.weight.float()[:, None] + module.bias.float()[:, None]).to(x.dtype)
