"""Mixer for one or two sequences."""

import torch


def accepts(module, state, x):
    return (True, True)[x.shape[0] - 1]


def forward(module, state, x):
    return module.down(torch.sigmoid(module.gate(x)) * module.up(x))
