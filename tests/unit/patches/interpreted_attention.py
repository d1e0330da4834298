"""The attention seed's kernel, run by Triton's interpreter (started by test_triton_seeds.py in a process of its own)."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

SHAPES = [(4, 2, 16), (6, 1, 24), (2, 2, 64), (8, 2, 6)]  # query heads, key heads, width of a head


def attention(shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> tuple[Qwen3Attention, Any]:
    heads, groups, head = shape
    config = Qwen3Config(
        hidden_size=48, num_attention_heads=heads, num_key_value_heads=groups, head_dim=head, num_hidden_layers=1, rms_norm_eps=1e-3
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    module = Qwen3Attention(config, 0).eval()
    with torch.no_grad():
        for norm in (module.q_norm, module.k_norm):
            norm.weight.add_(0.3 * torch.randn_like(norm.weight))
    return module.to(dtype), Qwen3RotaryEmbedding(config)


def angles(rotary: Any, x: torch.Tensor, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    positions = torch.arange(start, start + x.shape[1])[None].expand(x.shape[0], -1)
    return rotary(x, positions)


def both(candidate: Any, module: nn.Module, state: Any, calls: list[tuple[torch.Tensor, Any]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Results of the original and of the candidate over a sequence of calls on one cache each."""
    caches = [DynamicCache(), DynamicCache()]
    pairs = []
    for x, turned in calls:
        assert candidate.accepts(module, state, x, position_embeddings=turned, attention_mask=None, past_key_values=caches[1])
        want, _ = module(x, turned, None, caches[0])
        got, weights = candidate.forward(module, state, x, position_embeddings=turned, attention_mask=None, past_key_values=caches[1])
        assert weights is None
        assert got.shape == want.shape
        pairs.append((want, got))
    for left, right in zip(caches[0].layers, caches[1].layers, strict=True):
        pairs += [(left.keys, right.keys), (left.values, right.values)]
    return pairs


@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_and_its_continuation(seed: Any, shape: tuple[int, int, int]) -> None:
    candidate = seed("qk_norm_rope")
    module, rotary = attention(shape)
    for config in candidate.CONFIGS:
        state = candidate.prepare(module, **config)
        with torch.no_grad():
            for batch in (1, 3):
                xs = [torch.randn(batch, length, 48) for length in (7, 1, 1)]
                starts = [0, 7, 8]
                calls = [(x, angles(rotary, x, start)) for x, start in zip(xs, starts, strict=True)]
                for want, got in both(candidate, module, state, calls):
                    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_in_16_bit_it_rounds_where_the_original_rounds(seed: Any, shape: tuple[int, int, int]) -> None:
    candidate = seed("qk_norm_rope")
    module, rotary = attention(shape, torch.float16)
    exact = copy.deepcopy(module).double()
    state = candidate.prepare(module)
    with torch.no_grad():  # in float16: the interpreter cuts bfloat16 off instead of rounding it
        x = torch.randn(2, 5, 48).to(torch.float16)
        turned = angles(rotary, x, 0)
        pairs = both(candidate, module, state, [(x, turned)])
        assert torch.equal(*pairs[2])  # values
        differing = int((pairs[1][0] != pairs[1][1]).sum())
        assert differing <= 0.02 * pairs[1][0].numel()  # the sum of squares is taken in another order
        truth, _ = exact(x.double(), tuple(one.double() for one in turned), None)
        own, ours = ((one.double() - truth).norm() for one in pairs[0])
        assert ours <= 1.5 * own + 1e-9


def test_one_table_of_angles_for_the_whole_batch(seed: Any) -> None:
    candidate = seed("qk_norm_rope")
    module, rotary = attention(SHAPES[0])
    state = candidate.prepare(module)
    x = torch.randn(3, 5, 48)
    cos, sin = (one[:1].contiguous() for one in angles(rotary, x, 0))
    with torch.no_grad():
        want, _ = module(x, (cos, sin), None)
        assert candidate.accepts(module, state, x, (cos, sin), None)
        got, _ = candidate.forward(module, state, x, (cos, sin), None)
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_what_it_does_not_serve(seed: Any) -> None:
    candidate = seed("qk_norm_rope")
    module, rotary = attention(SHAPES[0])
    state = candidate.prepare(module)
    x = torch.randn(2, 4, 48)
    turned = angles(rotary, x, 0)

    def accepted(*args: Any, **kwargs: Any) -> bool:
        with torch.no_grad():
            return bool(candidate.accepts(module, state, *args, **kwargs))

    mask = torch.zeros(2, 1, 4, 4)
    assert accepted(x, turned, None)
    assert accepted(x, turned, None, position_ids=torch.arange(4)[None], use_cache=True)
    assert not accepted(x, turned, mask)
    assert not accepted(x, turned, attention_mask=mask)
    assert not accepted(x, turned, None, is_causal=True)
    assert not accepted(x.double(), turned, None)
    assert not accepted(x[0], turned, None)
    assert not accepted(x, tuple(one[:, :3] for one in turned), None)
    assert not accepted(x, tuple(one.double() for one in turned), None)
    assert not accepted(x, turned, None, cache=object())
    cache = DynamicCache()
    with torch.no_grad():
        module(x, turned, None, cache)
    assert not accepted(x, turned, None, cache)  # a second piece of a prompt
    assert accepted(x[:, :1], angles(rotary, x[:, :1], 4), None, cache)
    assert not candidate.accepts(module, state, x, turned, None)  # gradients are on


def test_it_is_told_by_structure_and_behaviour(seed: Any) -> None:
    candidate = seed("qk_norm_rope")
    module, _ = attention(SHAPES[0])
    assert candidate._has_structure(module)
    assert candidate._behaves(module)
    assert not candidate.matches(module)  # on the CPU

    class Unscaled(Qwen3Attention):
        def forward(self, x: torch.Tensor, turned: Any, mask: Any, cache: Any = None, **kwargs: Any) -> Any:
            return super().forward(x * 1.01, turned, mask, cache, **kwargs)

    other = Unscaled(module.config, 0).eval()
    assert candidate._has_structure(other)
    assert not candidate._behaves(other)
    eager = attention(SHAPES[0])[0]
    eager.config._attn_implementation = "eager"
    assert not candidate._has_structure(eager)
    sliding = attention(SHAPES[0])[0]
    sliding.sliding_window = 4
    assert not candidate._has_structure(sliding)
    biased = attention(SHAPES[0])[0]
    biased.q_norm = nn.LayerNorm(16)
    assert not (candidate._has_structure(biased) and candidate._behaves(biased))
