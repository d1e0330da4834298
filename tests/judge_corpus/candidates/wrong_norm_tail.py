"""MeanNorm by blocks of 32 columns."""

import torch


def forward(module, state, x):
    out = torch.empty_like(x)
    size = x.abs().mean(-1, keepdim=True) + module.eps
    for start in range(0, x.shape[-1] - 31, 32):
        part = slice(start, start + 32)
        out[..., part] = x[..., part] / size * module.weight[part]
    return out
