"""Turn by one multiplication of complex numbers."""

import torch


def forward(module, state, x, positions):
    half = module.size // 2
    step = module.base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angle = (positions.unsqueeze(-1) * step).unsqueeze(2)
    number = torch.complex(*x.float().split(half, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((number.real, number.imag), -1).to(x.dtype)
