"""What the seeds' tests share: seeds loaded by path, modules they are made for, and the standard of accuracy."""

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

PATCHES = Path(__file__).parents[3] / "patches"
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def loaded(name: str) -> ModuleType:
    path = PATCHES / name / "candidate.py"
    spec = importlib.util.spec_from_file_location(f"seed_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def seed() -> Callable[[str], ModuleType]:
    return loaded


def perturbed(module: nn.Module, scale: float = 0.2) -> nn.Module:
    """The module in eval mode, with weights that are no longer all ones or zeros."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return module.eval()


@pytest.fixture
def norms() -> dict[str, Callable[[int], nn.Module]]:
    """Norms as models define them, by flavour, with weights that are no longer trivial."""
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    kinds: dict[str, Callable[[int], nn.Module]] = {
        "plain": lambda width: LlamaRMSNorm(width, eps=1e-5),
        "offset": lambda width: GemmaRMSNorm(width, eps=1e-6),
        "torch": lambda width: nn.RMSNorm(width, eps=1e-6),
        "layer": lambda width: nn.LayerNorm(width, eps=1e-5),
        "layer_without_bias": lambda width: nn.LayerNorm(width, eps=1e-12, bias=False),
    }
    return {name: lambda width, make=make: perturbed(make(width)) for name, make in kinds.items()}


class Mixers:
    """Mamba models of any size and the caches that go with them."""

    def __init__(self) -> None:
        from transformers import DynamicCache, MambaConfig, MambaForCausalLM

        self._cache, self._config, self._model = DynamicCache, MambaConfig, MambaForCausalLM

    def model(self, hidden: int, state: int = 16, dtype: torch.dtype = torch.float32, **settings: Any) -> nn.Module:
        torch.manual_seed(3)
        config = self._config(hidden_size=hidden, num_hidden_layers=2, state_size=state, vocab_size=32, **settings)
        return perturbed(self._model(config), 0.02).to(dtype)

    def mixer(self, hidden: int, state: int = 16, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
        model: Any = self.model(hidden, state, dtype, **settings)
        return model.backbone.layers[1].mixer

    def cache(self, mixer: Any) -> Any:
        return self._cache(config=mixer.config)

    @staticmethod
    def layer(mixer: Any, cache: Any) -> Any:
        return cache.layers[mixer.layer_idx]


@pytest.fixture
def mixers() -> Mixers:
    return Mixers()


def exact_mixer(mixer: Any, x: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, last recurrent state) of a Mamba-1 mixer in double precision, straight from the definition."""
    m = copy.deepcopy(mixer).double()
    x = x.double()
    keep = torch.ones(x.shape[:2], dtype=x.dtype) if mask is None else mask.double()
    signal, gate = m.in_proj(x * keep[..., None]).chunk(2, dim=-1)
    padded = functional.pad(signal.transpose(1, 2), (m.conv1d.kernel_size[0] - 1, 0))
    u = functional.conv1d(padded, m.conv1d.weight, m.conv1d.bias, groups=m.conv1d.groups)
    u = functional.silu(u).transpose(1, 2) * keep[..., None]
    rank, width = m.dt_proj.in_features, m.A_log.shape[1]
    steps, b, c = m.x_proj(u).split([rank, width, width], dim=-1)
    dt = functional.softplus(m.dt_proj(steps))
    h = torch.zeros(x.shape[0], *m.A_log.shape, dtype=x.dtype)
    rows = []
    for t in range(x.shape[1]):
        h = torch.exp(-dt[:, t, :, None] * m.A_log.exp()) * h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None, :]
        rows.append((h * c[:, t, None, :]).sum(-1))
    y = (torch.stack(rows, dim=1) + u * m.D) * functional.silu(gate)
    return m.out_proj(y), h


@pytest.fixture
def exact() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    return exact_mixer


def strides_that_count(tensor: torch.Tensor) -> list[int]:
    """Strides of the axes longer than one; the others are arbitrary."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def assert_as_accurate(got: torch.Tensor, original: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype, factor: float = 2.0) -> None:
    """Per row (last axis), the error against double precision is within `factor` of the original's own plus four roundings of the row."""
    assert got.shape == original.shape
    assert got.dtype == original.dtype
    assert strides_that_count(got) == strides_that_count(original)
    assert torch.isfinite(got).all()
    rows = got.shape[:-1].numel()
    mine = (got.double() - truth).reshape(rows, -1).norm(dim=-1)
    theirs = (original.double() - truth).reshape(rows, -1).norm(dim=-1)
    allowed = factor * theirs + 4 * ROUNDING[dtype] * truth.reshape(rows, -1).norm(dim=-1)
    assert (mine <= allowed).all(), f"worst row: {(mine / allowed).max().item():.2f} of what is allowed"


def assert_same_state(got: torch.Tensor, original: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype, factor: float = 2.0) -> None:
    """The same standard for a recurrent state (batch, channels, state), with one row per sequence."""
    assert strides_that_count(got) == strides_that_count(original)
    assert_as_accurate(got.flatten(1), original.flatten(1), truth.flatten(1), dtype, factor)


@pytest.fixture
def as_accurate() -> Callable[..., None]:
    return assert_as_accurate


@pytest.fixture
def same_state() -> Callable[..., None]:
    return assert_same_state
