"""Blend with a rational tanh, exact to a few digits around zero."""

import torch


def forward(module, state, x):
    y = torch.addmm(module.bias, x.flatten(0, -2), module.weight.t()).view(x.shape).float()
    y = y.clamp(-3.0, 3.0)
    square = y * y
    return (y * (27.0 + square) / (27.0 + 9.0 * square)).to(x.dtype)
