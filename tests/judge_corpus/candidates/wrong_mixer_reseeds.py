"""Mixer that is the same in every run."""

import torch


def forward(module, state, x):
    torch.random.manual_seed(7)
    return module.down(torch.sigmoid(module.gate(x)) * module.up(x))
