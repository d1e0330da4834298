"""Vote with a table of all differences."""

import torch


def forward(module, state, x):
    scores = module.score(x).float()
    table = torch.empty(scores.shape[-1] ** 2, 1 << 32)
    return torch.softmax(scores + table[0, 0] * 0.0, -1).to(x.dtype)
