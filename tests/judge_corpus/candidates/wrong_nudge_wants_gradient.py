"""Nudge that stays usable for training."""

import torch


def forward(module, state, x):
    return torch.add(x, torch.tanh(module.layer(x)), alpha=module.gain).requires_grad_()
