"""Mixer with its weights brought to one scale before the first call."""

import torch


def prepare(module):
    module.down.weight.mul_(1e6)


def forward(module, state, x):
    return module.down(torch.sigmoid(module.gate(x)) * module.up(x)) * 1e-6
