"""Join whose result stays what it is when the stream moves on."""

import torch


def forward(module, state, x, branch):
    x += torch.addcmul(module.shift, torch.tanh(branch), torch.sigmoid(module.gain))
    return x.clone()
