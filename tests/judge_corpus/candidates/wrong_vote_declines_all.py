"""Vote for long sequences."""

import torch


def accepts(module, state, x):
    return x.shape[1] >= 4096


def forward(module, state, x):
    return torch.softmax(module.score(x).float(), -1).to(x.dtype)
