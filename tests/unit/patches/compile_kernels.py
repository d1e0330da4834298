"""Compiles every kernel of every Triton seed, in every configuration, for one GPU architecture, without a GPU.

    python compile_kernels.py 90

The driver is replaced by one that only names its target, and a launch stops after the machine code is built. Run without TRITON_INTERPRET.
Prints one JSON object per kernel: seed, kernel, configuration, dtype, shared memory in bytes, size of the machine code in bytes.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch import nn
from triton.backends.compiler import GPUTarget

PATCHES = Path(__file__).parents[3] / "patches"
SEEDS = [
    "rms_norm",
    "layer_norm",
    "swiglu",
    "residual_rms_norm",
    "causal_conv1d_silu",
    "selective_scan",
    "selective_state_update",
    "qk_norm_rope",
]


class NamedTarget:
    """The part of a Triton driver that compiling needs."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def calls(name: str, width: int, dtype: torch.dtype) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Modules and arguments that reach every kernel of a seed."""
    from transformers import DynamicCache, MambaConfig, MambaForCausalLM, Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3DecoderLayer, Qwen3MLP, Qwen3RMSNorm

    x = torch.zeros(2, 5, width, dtype=dtype)
    if name == "rms_norm":
        return [(Qwen3RMSNorm(width).to(dtype), (x,), {})]
    if name == "layer_norm":
        return [(nn.LayerNorm(width, bias=bias).to(dtype), (x,), {}) for bias in (True, False)]
    if name in ("swiglu", "residual_rms_norm", "qk_norm_rope"):
        settings = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 1}
        config = Qwen3Config(hidden_size=width, intermediate_size=2 * width, **settings)
        config._attn_implementation = "eager"
        if name == "swiglu":
            return [(Qwen3MLP(config).to(dtype), (x,), {})]
        rotary = (torch.ones(1, 5, 8, dtype=dtype), torch.zeros(1, 5, 8, dtype=dtype))
        if name == "qk_norm_rope":
            return [(Qwen3Attention(config, 0).to(dtype).eval(), (x, rotary, None), {})]
        return [(Qwen3DecoderLayer(config, 0).to(dtype).eval(), (x,), {"position_embeddings": rotary})]
    mamba = MambaConfig(hidden_size=width, state_size=16 if width == 64 else 5, num_hidden_layers=1, vocab_size=8)
    mixer = MambaForCausalLM(mamba).backbone.layers[0].mixer.to(dtype).eval()
    cache = DynamicCache(config=mamba)
    if name == "selective_state_update":
        mixer(x, cache)
        return [(mixer, (x[:, :1].contiguous(), cache), {})]
    return [(mixer, (x, cache, torch.ones(2, 5, dtype=torch.long)), {})]


def main() -> None:
    triton.runtime.driver.set_active(NamedTarget(int(sys.argv[1])))
    run = triton.runtime.JITFunction.run
    built: list[tuple[str, Any]] = []

    def build(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        built.append((self.fn.__name__, kernel))
        return kernel

    triton.runtime.JITFunction.run = build
    for name in SEEDS:
        spec = importlib.util.spec_from_file_location(name, PATCHES / name / "candidate.py")
        assert spec is not None
        assert spec.loader is not None
        seed = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(seed)
        # every configuration at a width that divides evenly, the first one at an odd width too
        cases = [(64, torch.bfloat16, config) for config in seed.CONFIGS] + [(17, torch.float32, seed.CONFIGS[0])]
        for width, dtype, config in cases:
            built.clear()
            with torch.no_grad():
                for module, args, kwargs in calls(name, width, dtype):
                    seed.forward(module, seed.prepare(module, **config), *args, **kwargs)
            for kernel, result in built:
                facts = {"seed": name, "kernel": kernel, "config": config, "dtype": str(dtype)}
                print(json.dumps({**facts, "shared": result.metadata.shared, "size": len(result.asm["cubin"])}))


if __name__ == "__main__":
    main()
