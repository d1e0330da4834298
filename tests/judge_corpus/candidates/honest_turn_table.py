"""Turn with cosines and sines from a table, which is made longer when a position asks for it."""

import math

import torch


class Table:
    """Rows of cosines and sines, one per position."""

    def __init__(self, module):
        half = module.size // 2
        self.step = torch.tensor([math.exp(-math.log(module.base) * index / half) for index in range(half)], dtype=torch.float64)
        self.rows = self.made(0)

    def made(self, count):
        angle = torch.arange(count)[:, None] * self.step
        return torch.stack((angle.cos(), angle.sin())).float()

    def of(self, positions):
        last = int(positions.max())
        if last >= self.rows.shape[1]:
            self.rows = self.made(2 * last + 2)
        return self.rows.to(positions.device)[:, positions].unsqueeze(3)


def prepare(module):
    return Table(module)


def forward(module, state, x, positions):
    cos, sin = state.of(positions)
    one, two = x.float().chunk(2, -1)
    return torch.cat((one * cos - two * sin, torch.addcmul(two * cos, one, sin)), -1).to(x.dtype)
