"""Nudge that listens to its layer."""

import torch


def prepare(module):
    module.layer.register_forward_hook(lambda layer, args, result: torch.tanh(result))


def forward(module, state, x):
    return torch.add(x, module.layer(x), alpha=module.gain)
