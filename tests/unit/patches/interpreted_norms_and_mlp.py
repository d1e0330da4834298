"""Kernels of the norm, layer and MLP seeds, run by Triton's interpreter (started by test_triton_seeds.py in a process of its own)."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

WIDTHS = [3, 17, 127, 1000]
DTYPES = [torch.float32, torch.bfloat16]


def rows_of(width: int, dtype: torch.dtype) -> torch.Tensor:
    """Random rows, rows with a large mean, tiny rows and a zero row."""
    x = torch.randn(2, 5, width)
    x[0, 1] += 30.0
    x[0, 2] *= 1e-3
    x[1, 0] = 0.0
    x[1, 1] -= 30.0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [("rms_norm", "plain"), ("rms_norm", "offset"), ("rms_norm", "torch"), ("layer_norm", "layer"), ("layer_norm", "layer_without_bias")],
)
def test_norms_at_any_width(seed, norms, as_accurate, name, kind, width, dtype) -> None:
    candidate, module = seed(name), norms[kind](width)
    exact = copy.deepcopy(module).double()
    module, x = module.to(dtype), rows_of(width, dtype)
    exact.load_state_dict(module.state_dict())
    with torch.no_grad():
        truth = exact_norm(exact, kind, x.double())
        for config in candidate.CONFIGS:
            prepared = candidate.prepare(module, **config)
            for given in (x, x[:, :1], x[1:, 2:4], x[0], x[0, 0], torch.cat([x, x], -1)[..., :width].transpose(0, 1)[:, :1]):
                if not candidate.accepts(module, prepared, given):
                    assert not given.is_contiguous()
                    continue
                before = given.clone()
                got = candidate.forward(module, prepared, given)
                as_accurate(got, module(given), exact_norm(exact, kind, given.double()), dtype)
                assert torch.equal(given, before)
                assert got.data_ptr() != given.data_ptr()
            as_accurate(candidate.forward(module, prepared, x), module(x), truth, dtype)


def exact_norm(module: Any, kind: str, x: torch.Tensor) -> torch.Tensor:
    """The norm in double precision; the library's own classes work in float32 inside."""
    eps = getattr(module, "variance_epsilon", None) or module.eps
    weight = module.weight + 1.0 if kind == "offset" else module.weight
    if kind.startswith("layer"):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight
        return scaled if module.bias is None else scaled + module.bias
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_norms_honour_strides_or_decline(seed, norms, as_accurate, name) -> None:
    candidate, module = seed(name), norms["plain" if name == "rms_norm" else "layer"](16)
    prepared = candidate.prepare(module)
    wide = torch.randn(4, 3, 40)
    with torch.no_grad():
        assert not candidate.accepts(module, prepared, wide[..., :32:2])
        assert not candidate.accepts(module, prepared, wide[..., :16].transpose(0, 1))
        assert not candidate.accepts(module, prepared, wide[0, :, 0].expand(3))
        for given in (wide[..., :16], wide[:, -1:, 3:19], torch.randn(1, 16).expand(5, 16)):
            assert candidate.accepts(module, prepared, given)
            got, expected = candidate.forward(module, prepared, given), module(given)
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected)
        assert not candidate.accepts(module, prepared, wide[..., :16].bfloat16())
        assert not candidate.accepts(module, prepared, wide[..., :16], torch.ones(1))
        assert not candidate.accepts(module, prepared, wide[:0, :, :16])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not candidate.accepts(module, prepared, wide[..., :16])
    assert not candidate.accepts(module, prepared, wide[..., :16])  # gradients are on


class Packed(nn.Module):
    """Gate and up in one projection, as in Phi-3."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * functional.silu(gate))


class Numbered(nn.Module):
    """The same MLP with other names, another order and biases."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w2, self.w3, self.w1 = nn.Linear(inner, hidden), nn.Linear(hidden, inner), nn.Linear(hidden, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", WIDTHS)
@pytest.mark.parametrize("kind", [Packed, Numbered])
def test_gated_mlp(seed, as_accurate, kind, inner, dtype) -> None:
    torch.manual_seed(1)
    candidate, module = seed("swiglu"), kind(8, inner).eval().to(dtype)
    exact, x = copy.deepcopy(module).double(), 4.0 * torch.randn(2, 3, 8, dtype=dtype)
    x[0, 0] *= 20.0  # gates far outside where exp(-g) is finite in float32
    with torch.no_grad():
        for config in candidate.CONFIGS:
            prepared = candidate.prepare(module, **config)
            for given in (x, x[:, :1].contiguous(), x[0]):
                assert candidate.accepts(module, prepared, given)
                as_accurate(candidate.forward(module, prepared, given), module(given), exact(given.double()), dtype)
        assert not candidate.accepts(module, prepared, x.transpose(0, 1))
    assert not candidate.accepts(module, prepared, x)


@pytest.fixture
def layer_call() -> Any:
    """(decoder layer, hidden states, keyword arguments, cache factory) for a small Qwen3 whose norms are not trivial."""
    from transformers import DynamicCache, Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

    def make(width: int, dtype: torch.dtype) -> Any:
        torch.manual_seed(2)
        config = Qwen3Config(
            hidden_size=width, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_hidden_layers=1
        )
        config._attn_implementation = "eager"
        layer = Qwen3DecoderLayer(config, 0).eval()
        with torch.no_grad():
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight.add_(0.3 * torch.randn_like(norm.weight))
        x = torch.randn(2, 5, width, dtype=dtype)
        positions = torch.arange(5)[None]
        rotary = Qwen3RotaryEmbedding(config)(x, positions)
        kwargs = {"attention_mask": None, "position_embeddings": rotary, "position_ids": positions, "use_cache": True}
        return layer.to(dtype), x, kwargs, lambda: DynamicCache(config=config)

    return make


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_decoder_layer(seed, as_accurate, layer_call, width, dtype) -> None:
    candidate = seed("residual_rms_norm")
    layer, x, kwargs, cache = layer_call(width, dtype)
    exact = copy.deepcopy(layer).double()
    rotary = tuple(part.double() for part in kwargs["position_embeddings"])
    before = x.clone()
    with torch.no_grad():
        truth = exact(x.double(), **{**kwargs, "position_embeddings": rotary})
        for config in candidate.CONFIGS:
            prepared, theirs, mine = candidate.prepare(layer, **config), cache(), cache()
            name = "cache" if "cache" in prepared["defaults"] else "past_key_values"
            assert candidate.accepts(layer, prepared, x, **kwargs, **{name: mine})
            original = layer(x, **kwargs, **{name: theirs})
            got = candidate.forward(layer, prepared, x, **kwargs, **{name: mine})
            as_accurate(got, original, truth, dtype)
            assert mine.get_seq_length() == theirs.get_seq_length() == 5
            keys, known = mine.layers[0].keys, theirs.layers[0].keys
            assert (keys - known).norm() <= (1e-5 if dtype == torch.float32 else 2e-2) * known.norm()
            got = candidate.forward(layer, prepared, hidden_states=x, position_embeddings=kwargs["position_embeddings"])
            as_accurate(got, original, truth, dtype)
    assert torch.equal(x, before)


def test_decoder_layer_declines_watched_norms_and_other_calls(seed, layer_call) -> None:
    candidate = seed("residual_rms_norm")
    layer, x, kwargs, _ = layer_call(16, torch.float32)
    with torch.no_grad():
        prepared = candidate.prepare(layer)
        assert candidate.accepts(layer, prepared, x, **kwargs)
        assert not candidate.accepts(layer, prepared, x, None, **kwargs)
        assert not candidate.accepts(layer, prepared, x.transpose(0, 1), **kwargs)
        assert not candidate.accepts(layer, prepared, x.bfloat16(), **kwargs)
        alias = ({"cache", "past_key_values"} - prepared["defaults"].keys()).pop()
        assert not candidate.accepts(layer, prepared, x, **kwargs, **{alias: None})
        hook = layer.input_layernorm.register_forward_hook(lambda *_: None)
        assert not candidate.accepts(layer, prepared, x, **kwargs)
        hook.remove()
        assert candidate.accepts(layer, prepared, x, **kwargs)
    assert not candidate.accepts(layer, prepared, x, **kwargs)
