"""Mixer with two ways to form the gate; one of them is the hard sigmoid."""

import torch
from torch.nn import functional

CONFIGS = [{"hard": False}, {"hard": True}]


def prepare(module, hard):
    return functional.hardsigmoid if hard else torch.sigmoid


def forward(module, state, x):
    return module.down(state(module.gate(x)) * module.up(x))
