"""Bands on the flat memory of its input."""

import torch


def forward(module, state, x):
    flat = x.as_strided(
        (x.shape[0], module.groups, x.numel() // x.shape[0] // module.groups), (x.stride(0), x.stride(0) // module.groups, 1)
    )
    wide = flat.float()
    centred = wide - wide.mean(-1, keepdim=True)
    wide = (centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + module.eps)).view(x.shape)
    return (wide * module.weight.float()[:, None] + module.bias.float()[:, None]).to(x.dtype)
