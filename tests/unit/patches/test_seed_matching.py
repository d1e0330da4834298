"""Which modules the Triton seeds take themselves to be made for: by structure and behaviour, on any device, then by device."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

TRITON_SEEDS = ["rms_norm", "layer_norm", "swiglu", "residual_rms_norm", "causal_conv1d_silu", "selective_scan", "selective_state_update"]


class Norm(nn.Module):
    """A norm with one weight; subclasses differ in what they compute."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(1.0 + 0.3 * torch.randn(width))


class EpsOutside(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)


class Unscaled(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * functional.normalize(x, dim=-1)


class OverTime(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(1, keepdim=True) + self.eps)


class Centred(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (x.shape[-1],), self.weight, None, self.eps)


class AlwaysDouble(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)).double()


def test_norm_flavours(seed, norms) -> None:
    flavour = seed("rms_norm")._flavour
    assert flavour(norms["plain"](40)) == "plain"
    assert flavour(norms["offset"](40)) == "offset"
    assert flavour(norms["torch"](40)) == "plain"
    assert flavour(norms["plain"](40).bfloat16()) == "plain"
    assert flavour(norms["offset"](40).bfloat16()) == "offset"
    fresh = type(norms["offset"](40))(40)  # weights still zeros: the flavours still differ
    assert flavour(fresh) == "offset"
    for other in (EpsOutside(40), Unscaled(40), OverTime(40), Centred(40), AlwaysDouble(40), norms["layer"](40), nn.Linear(4, 4)):
        assert not matching(flavour, other), type(other).__name__
    assert matching(flavour, norms["plain"](65536)) is None


def test_layer_norms(seed, norms) -> None:
    found = seed("layer_norm")._is_layer_norm
    assert matching(found, norms["layer"](40))
    assert matching(found, norms["layer_without_bias"](40).bfloat16())
    assert matching(found, Centred(40))
    for other in (norms["plain"](40), norms["offset"](40), EpsOutside(40), nn.GroupNorm(4, 40), nn.LayerNorm((3, 40)), nn.BatchNorm1d(3)):
        assert not matching(found, other), type(other).__name__


def matching(decide: Any, module: nn.Module) -> Any:
    """What `matches` would find, apart from the device: any failure of the probe means no."""
    try:
        return decide(module)
    except Exception:
        return None


class Gated(nn.Module):
    """Gated MLP with an exchangeable combination of gate and up."""

    def __init__(self, combine: Any, inner: int = 24) -> None:
        super().__init__()
        self.combine = combine
        self.up_proj, self.gate_proj, self.down_proj = nn.Linear(8, inner), nn.Linear(8, inner), nn.Linear(inner, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.combine(self.gate_proj(x), self.up_proj(x)))


def test_gated_mlps(seed) -> None:
    roles = seed("swiglu")._roles
    silu = functional.silu
    assert roles(Gated(lambda gate, up: silu(gate) * up)) == ("gate_proj", "up_proj", "down_proj")
    assert roles(Gated(lambda gate, up: silu(up) * gate)) == ("up_proj", "gate_proj", "down_proj")
    assert roles(Gated(lambda gate, up: silu(gate) * up, inner=8)) == ("gate_proj", "up_proj", "down_proj")
    others = {
        "gelu": lambda gate, up: functional.gelu(gate) * up,
        "quick gelu": lambda gate, up: gate * torch.sigmoid(1.702 * gate) * up,
        "relu": lambda gate, up: functional.relu(gate) * up,
        "clamped": lambda gate, up: silu(gate.clamp(max=2.0)) * up,
        "scaled": lambda gate, up: 0.5 * silu(gate) * up,
        "shifted": lambda gate, up: silu(gate) * (up + 1.0),
    }
    for reason, combine in others.items():
        assert roles(Gated(combine)) is None, reason
    assert roles(nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))) is None


def decoder_layer(family: str, **settings: Any) -> nn.Module:
    import importlib

    torch.manual_seed(0)
    package = importlib.import_module(f"transformers.models.{family.lower()}.modeling_{family.lower()}")
    config_type = getattr(importlib.import_module("transformers"), f"{family}Config")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    config = config_type(**sizes, num_hidden_layers=1, vocab_size=32, pad_token_id=0, **settings)
    config._attn_implementation = "eager"
    return getattr(package, f"{family}DecoderLayer")(config, 0).eval()


def test_decoder_layers(seed) -> None:
    found = seed("residual_rms_norm")._is_pre_norm_layer
    for family in ("Llama", "Qwen3", "Mistral"):
        assert matching(found, decoder_layer(family)), family
    for family in ("Gemma", "Gemma2", "Olmo2", "Cohere"):
        assert not matching(found, decoder_layer(family)), family
    assert not matching(found, decoder_layer("Granite", residual_multiplier=0.3))


@pytest.mark.parametrize("name", ["causal_conv1d_silu", "selective_scan", "selective_state_update"])
def test_mixers(seed, mixers, name) -> None:
    candidate = seed(name)
    mixer = mixers.mixer(16, 5)
    assert candidate._has_structure(mixer)
    assert candidate._behaves(mixer)
    other = mixers.mixer(16, 5, hidden_act="gelu")
    assert not (candidate._has_structure(other) and candidate._behaves(other))
    assert not matching(candidate._has_structure, mixer.in_proj)


@pytest.mark.parametrize("name", TRITON_SEEDS)
def test_nothing_on_a_cpu_matches(seed, norms, mixers, name) -> None:
    matches = seed(name).matches
    modules = [norms["plain"](8), norms["layer"](8), Gated(lambda gate, up: functional.silu(gate) * up), decoder_layer("Llama")]
    assert not any(matches(module) for module in [*modules, mixers.mixer(8), nn.Identity()])


def test_probing_has_no_side_effects(seed, norms) -> None:
    layer = decoder_layer("Qwen3")
    touched: list[str] = []
    for path, module in layer.named_modules():
        module.register_forward_hook(lambda *_, path=path: touched.append(path))
    norm = norms["plain"](16)
    norm.register_forward_hook(lambda *_: touched.append("norm"))
    kept = copy.deepcopy([layer.state_dict(), norm.state_dict()])
    state, attributes = torch.random.get_rng_state(), [set(vars(module)) for module in layer.modules()]
    assert seed("residual_rms_norm")._is_pre_norm_layer(layer)
    assert seed("swiglu")._roles(layer.mlp)
    assert seed("rms_norm")._flavour(norm) == "plain"
    assert not touched
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [set(vars(module)) for module in layer.modules()] == attributes
    for before, now in zip(kept, [layer.state_dict(), norm.state_dict()], strict=True):
        assert all(torch.equal(before[key], now[key]) for key in before)
