"""Trail, cut off while it was written."""

import torch


def forward(module, state, x):
    padded = torch.cat([x.new_zeros(x.shape[0], module.taps - 1, x.shape[2]), x], 1
    return padded
