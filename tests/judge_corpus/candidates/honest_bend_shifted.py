"""Bend with both sums from one pass over the row, shifted by its first value so that nothing cancels."""

import torch
from torch.nn import functional


def forward(module, state, x):
    wide = x.float()
    shifted = wide - wide[..., :1]
    mean = shifted.mean(-1, keepdim=True)
    variance = shifted.square().mean(-1, keepdim=True).addcmul_(mean, mean, value=-1)
    y = (shifted - mean).mul_(torch.rsqrt(variance + module.eps))
    return functional.gelu(torch.addcmul(module.bias.float(), y, module.weight.float())).to(x.dtype)
