"""Lookup with a table packed by an earlier run."""

import torch


def prepare(module):
    return torch.load("packed.pt")


def forward(module, state, ids):
    return state[ids]
