"""A model of its own, next to the scripts that use it."""

import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):  # slow on purpose
            x = x * 1.0
        return x * self.weight


class Stack(nn.Module):
    def __init__(self, layers: int = 2, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scale(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self(x) + 1
