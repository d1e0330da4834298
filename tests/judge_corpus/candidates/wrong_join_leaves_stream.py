"""Join without touching its arguments."""

import torch


def forward(module, state, x, branch):
    return x + torch.addcmul(module.shift, torch.tanh(branch), torch.sigmoid(module.gain))
