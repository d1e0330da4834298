"""Small models for the runtime's tests."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from llm4llm.runtime.apply import Handle, PatchSpec, apply
from llm4llm.runtime.domain import merge, observe

DOUBLE = """'''Twice the original, so that a hit is seen in the result.'''
def prepare(module, **config):
    return module.weight.detach().clone()

def forward(module, state, x):
    return 2 * x * state
"""


class Scale(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Layer:
    """One layer's part of a cache."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.is_initialized = False


class Cache:
    def __init__(self, layers: int = 2) -> None:
        self.layers = [Layer() for _ in range(layers)]

    def update(self, index: int, keys: torch.Tensor) -> torch.Tensor:
        layer = self.layers[index]
        layer.keys = keys if layer.keys is None else torch.cat([layer.keys, keys], dim=1)
        layer.is_initialized = True
        return layer.keys


class Attention(nn.Module):
    """Sums what its layer's cache holds; `window` and `layer_idx` are both plain integers."""

    def __init__(self, layer_idx: int, window: int = 4) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.window = window
        self.proj = nn.Linear(8, 8, bias=False)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, cache: Cache | None = None) -> torch.Tensor:
        keys = self.proj(hidden_states)
        if cache is not None:
            keys = cache.update(self.layer_idx, keys)
        out = hidden_states + keys.sum(1, keepdim=True)
        return out if mask is None else out * mask


class Stack(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(index) for index in range(layers))
        self.norm = Scale()

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None, cache: Cache | None = None) -> torch.Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask=mask, cache=cache)
        return self.norm(hidden_states)


def spec(
    tmp_path: Path, module: nn.Module, calls: list[tuple[tuple[Any, ...], dict[str, Any]]], source: str = DOUBLE, **more: Any
) -> PatchSpec:
    """A patch that is proven on these calls of this module, without gradients."""
    file = tmp_path / f"candidate_{abs(hash(source))}.py"
    file.write_text(source)
    with torch.no_grad():
        domain = merge([observe(module, args, kwargs) for args, kwargs in calls], effects=more.pop("effects", None))
    return PatchSpec(name=more.pop("name", "cand_a"), file=file, domain=domain, paths=more.pop("paths", ("",)), **more)


def patched(tmp_path: Path, module: nn.Module, example: torch.Tensor, source: str = DOUBLE) -> Handle:
    """The module with one patch that is proven on one tensor."""
    return apply(module, [spec(tmp_path, module, [((example,), {})], source)])
