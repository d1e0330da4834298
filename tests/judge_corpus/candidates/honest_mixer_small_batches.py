"""Mixer through flat matrices, offered for batches up to three only."""

import torch


def accepts(module, state, x):
    return x.shape[0] <= 3


def forward(module, state, x):
    rows = x.reshape(-1, x.shape[-1])
    gate = torch.addmm(module.gate.bias, rows, module.gate.weight.t()).sigmoid_()
    up = torch.addmm(module.up.bias, rows, module.up.weight.t())
    return (gate * up @ module.down.weight.t()).view(x.shape)
