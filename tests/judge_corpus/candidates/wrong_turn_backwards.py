"""Turn with the halves formed by addcmul."""

import torch


def forward(module, state, x, positions):
    half = module.size // 2
    step = module.base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angle = (positions.unsqueeze(-1) * step).unsqueeze(2)
    one, two = x.float().split(half, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([torch.addcmul(one * cos, two, sin), torch.addcmul(two * cos, one, sin, value=-1)], -1).to(x.dtype)
