"""The Triton seeds on a real GPU: what they match, every width, offsets beyond 32 bits, many rows, and whole generations."""

import copy
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.gpu

PATCHES = Path(__file__).parents[2] / "patches"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"seed_{name}", PATCHES / name / "candidate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def perturbed(module: nn.Module, dtype: torch.dtype) -> Any:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return module.eval().to("cuda", dtype)


def assert_close_to(truth: torch.Tensor, got: torch.Tensor, original: torch.Tensor) -> None:
    """As accurate as the original against double precision, and the same kind of tensor."""
    assert (got.shape, got.dtype, got.device) == (original.shape, original.dtype, original.device)
    size = truth.norm()
    mine, theirs = (got.double() - truth).norm() / size, (original.double() - truth).norm() / size
    assert mine <= 2.0 * theirs + 4.0 * ROUNDING[got.dtype]


def exact_norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    x, weight = x.double(), module.weight.double()
    eps = getattr(module, "variance_epsilon", None) or module.eps
    if isinstance(module, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    if type(module).__name__.startswith("Gemma"):
        weight = weight + 1.0
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return y if getattr(module, "bias", None) is None else y + module.bias.double()


def norm_types() -> list[tuple[str, Any]]:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    return [("rms_norm", Qwen3RMSNorm), ("rms_norm", GemmaRMSNorm), ("layer_norm", nn.LayerNorm)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 17, 127, 768, 1000, 2560, 8192, 20000])
@torch.no_grad()
def test_norms_at_any_width(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    for name, kind in norm_types():
        seed, module = load(name), perturbed(kind(width, eps=1e-5), dtype)
        assert seed.matches(module)
        x = torch.randn(3, 7, width, device="cuda").to(dtype)
        x[0, 1] += 30.0
        x[1] *= 1e-3
        for config in seed.CONFIGS:
            prepared = seed.prepare(module, **config)
            for given in (x, x[:, -1:], x[1]):
                assert seed.accepts(module, prepared, given)
                assert_close_to(exact_norm(module, given), seed.forward(module, prepared, given), module(given))


@torch.no_grad()
def test_rows_beyond_32_bit_offsets() -> None:
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of free GPU memory")
    width, rows = 4096, 2**31 // 4096 + 8
    for name, kind in norm_types():
        seed, module = load(name), perturbed(kind(width, eps=1e-5), torch.bfloat16)
        x = torch.randn(1, width, device="cuda", dtype=torch.bfloat16).repeat(rows, 1)
        x[-3:] = torch.randn(3, width, device="cuda", dtype=torch.bfloat16)
        got = seed.forward(module, seed.prepare(module), x)
        assert_close_to(exact_norm(module, x[-3:]), got[-3:], module(x[-3:]))
        del x, got


@torch.no_grad()
def test_more_rows_than_a_short_grid_axis_takes() -> None:
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

    for name, kind in norm_types():
        seed, module = load(name), perturbed(kind(8, eps=1e-5), torch.float32)
        x = torch.randn(70_000, 1, 8, device="cuda")
        assert_close_to(exact_norm(module, x), seed.forward(module, seed.prepare(module, tile=8), x), module(x))
    seed, mlp = load("swiglu"), perturbed(Qwen3MLP(Qwen3Config(hidden_size=8, intermediate_size=17)), torch.float32)
    x = torch.randn(70_000, 1, 8, device="cuda")
    assert_close_to(copy.deepcopy(mlp).double()(x.double()), seed.forward(mlp, seed.prepare(mlp), x), mlp(x))
    seed, (mixer, new_cache) = load("selective_scan"), mamba(4, 3, torch.float32)
    x = torch.randn(70_000, 2, 4, device="cuda")
    torch.testing.assert_close(seed.forward(mixer, seed.prepare(mixer), x, new_cache()), mixer(x, new_cache()), rtol=1e-4, atol=1e-5)


def mamba(hidden: int, state: int, dtype: torch.dtype) -> Any:
    from transformers import DynamicCache, MambaConfig, MambaForCausalLM

    torch.manual_seed(3)
    config = MambaConfig(hidden_size=hidden, state_size=state, num_hidden_layers=1, vocab_size=32)
    mixer = perturbed(MambaForCausalLM(config), dtype).backbone.layers[0].mixer
    return mixer, lambda: DynamicCache(config=config)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "state", "batch", "length"), [(17, 5, 2, 70), (64, 16, 3, 129), (768, 16, 1, 512), (24, 3, 1, 1)])
@pytest.mark.parametrize("name", ["selective_scan", "causal_conv1d_silu"])
@torch.no_grad()
def test_mamba_prefill(name: str, hidden: int, state: int, batch: int, length: int, dtype: torch.dtype) -> None:
    seed, (mixer, new_cache) = load(name), mamba(hidden, state, dtype)
    assert seed.matches(mixer)
    x, mask = torch.randn(batch, length, hidden, device="cuda").to(dtype), torch.ones(batch, length, device="cuda", dtype=torch.long)
    mask[0, : length // 3] = 0
    truth = copy.deepcopy(mixer).double()(x.double(), None, mask)
    for config in seed.CONFIGS:
        prepared, theirs, mine = seed.prepare(mixer, **config), new_cache(), new_cache()
        assert seed.accepts(mixer, prepared, x, mine, mask)
        assert_close_to(truth, seed.forward(mixer, prepared, x, mine, mask), mixer(x, theirs, mask))
        tolerance = 64 * ROUNDING[dtype]
        for kind in ("conv_states", "recurrent_states"):
            found, expected = getattr(mine.layers[0], kind)[0], getattr(theirs.layers[0], kind)[0]
            assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
            assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "state", "batch"), [(17, 5, 2), (768, 16, 1), (32, 16, 9)])
@torch.no_grad()
def test_mamba_decode_updates_the_cache_in_place(hidden: int, state: int, batch: int, dtype: torch.dtype) -> None:
    seed, (mixer, new_cache) = load("selective_state_update"), mamba(hidden, state, dtype)
    assert seed.matches(mixer)
    x = torch.randn(batch, 24, hidden, device="cuda").to(dtype)
    truth = copy.deepcopy(mixer).double()(x.double())
    for config in seed.CONFIGS:
        prepared, theirs, mine = seed.prepare(mixer, **config), new_cache(), new_cache()
        mixer(x[:, :6], theirs)
        mixer(x[:, :6], mine)
        layer = mine.layers[0]
        addresses = layer.conv_states[0].data_ptr(), layer.recurrent_states[0].data_ptr()
        for t in range(6, 24):
            step = x[:, t : t + 1].contiguous()
            assert seed.accepts(mixer, prepared, step, mine)
            got = seed.forward(mixer, prepared, step, mine)
            assert_close_to(truth[:, t : t + 1], got, mixer(step, theirs))
        assert addresses == (layer.conv_states[0].data_ptr(), layer.recurrent_states[0].data_ptr())
        assert torch.equal(layer.conv_states[0], theirs.layers[0].conv_states[0])


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_decoder_layer_and_mlp(dtype: torch.dtype) -> None:
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

    torch.manual_seed(0)
    sizes = {"hidden_size": 320, "intermediate_size": 1000, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config = Qwen3Config(**sizes, num_hidden_layers=1)
    config._attn_implementation = "sdpa"
    layer = perturbed(Qwen3DecoderLayer(config, 0), dtype)
    x = torch.randn(2, 33, 320, device="cuda").to(dtype)
    rotary = Qwen3RotaryEmbedding(config).cuda()(x, torch.arange(33, device="cuda")[None])
    exact = copy.deepcopy(layer).double()
    truth = exact(x.double(), attention_mask=None, position_embeddings=tuple(part.double() for part in rotary))
    original = layer(x, attention_mask=None, position_embeddings=rotary)
    seed = load("residual_rms_norm")
    assert seed.matches(layer)
    for settings in seed.CONFIGS:
        prepared = seed.prepare(layer, **settings)
        assert seed.accepts(layer, prepared, x, position_embeddings=rotary)
        assert_close_to(truth, seed.forward(layer, prepared, x, position_embeddings=rotary), original)
    seed, mlp = load("swiglu"), layer.mlp
    assert seed.matches(mlp)
    for settings in seed.CONFIGS:
        prepared = seed.prepare(mlp, **settings)
        assert seed.accepts(mlp, prepared, x)
        assert_close_to(exact.mlp(x.double()), seed.forward(mlp, prepared, x), mlp(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "groups", "head"), [(32, 8, 128), (6, 1, 24), (2, 2, 256)])
@torch.no_grad()
def test_attention_with_normed_queries_and_keys(heads: int, groups: int, head: int, dtype: torch.dtype) -> None:
    from transformers import DynamicCache, Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

    torch.manual_seed(0)
    config = Qwen3Config(hidden_size=96, num_attention_heads=heads, num_key_value_heads=groups, head_dim=head, num_hidden_layers=1)
    config._attn_implementation = "sdpa"
    module, seed = perturbed(Qwen3Attention(config, 0), dtype), load("qk_norm_rope")
    exact, rotary = copy.deepcopy(module).double(), Qwen3RotaryEmbedding(config).cuda()
    assert seed.matches(module)
    for settings in seed.CONFIGS:
        prepared, caches = seed.prepare(module, **settings), [DynamicCache() for _ in range(3)]
        for start, length in ((0, 33), (33, 1), (34, 1)):
            x = torch.randn(2, length, 96, device="cuda").to(dtype)
            turned = rotary(x, torch.arange(start, start + length, device="cuda")[None].expand(2, -1))
            truth, _ = exact(x.double(), tuple(part.double() for part in turned), None, caches[0])
            theirs, _ = module(x, turned, None, caches[1])
            assert seed.accepts(module, prepared, x, turned, None, caches[2])
            mine, _ = seed.forward(module, prepared, x, turned, None, caches[2])
            assert_close_to(truth, mine, theirs)


@torch.no_grad()
def test_launches_follow_the_tensor_to_another_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for name, kind in norm_types():
        seed, module = load(name), perturbed(kind(64, eps=1e-5), torch.float32).to("cuda:1")
        x = torch.randn(5, 64, device="cuda:1")
        assert_close_to(exact_norm(module, x), seed.forward(module, seed.prepare(module), x), module(x))
        assert torch.cuda.current_device() == 0
