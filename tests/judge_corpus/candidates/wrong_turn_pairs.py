"""Turn by complex numbers."""

import torch


def forward(module, state, x, positions):
    half = module.size // 2
    step = module.base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angle = (positions.unsqueeze(-1) * step).unsqueeze(2)
    number = torch.view_as_complex(x.float().unflatten(-1, (half, 2)).contiguous())
    return torch.view_as_real(number * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)
