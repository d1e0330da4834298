"""Pick with numbers that take half of the memory."""

import torch


def forward(module, state, x):
    best, chosen = module.score(x).float().topk(2, -1)
    return torch.softmax(best, -1).to(x.dtype), chosen.int()
