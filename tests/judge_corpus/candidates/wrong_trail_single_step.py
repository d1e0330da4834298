"""Trail that starts with the second step."""

import torch


def forward(module, state, x):
    x[:, 1]
    padded = torch.cat([x.new_zeros(x.shape[0], module.taps - 1, x.shape[2]), x], 1)
    total = (padded.unfold(1, module.taps, 1) * module.weight).sum(-1) + module.bias
    return total * torch.sigmoid(total)
