"""Bend with the GELU that needs one sigmoid only."""

import torch


def forward(module, state, x):
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + module.eps)
    y = torch.addcmul(module.bias.float(), centred * scale, module.weight.float())
    return (y * torch.sigmoid(1.702 * y)).to(x.dtype)
