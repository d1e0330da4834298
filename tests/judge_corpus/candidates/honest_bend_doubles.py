"""Bend in double precision, which a CPU hardly minds."""

import torch


def prepare(module):
    return module.weight.detach().double(), module.bias.detach().double()


def forward(module, state, x):
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    y = centred * (centred.square().mean(-1, keepdim=True) + module.eps).rsqrt_() * state[0] + state[1]
    return y.mul_(torch.special.ndtr(y)).to(x.dtype)
