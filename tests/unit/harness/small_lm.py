"""A hand-written language model with a cache class of its own, whose mixer is a deliberately slow loop."""

from typing import Any

import torch
from torch import nn
from transformers import MambaConfig, MambaForCausalLM


class Memory:
    """One row per layer; the sum of all tokens seen so far."""

    def __init__(self, layers: int) -> None:
        self.rows: list[torch.Tensor | None] = [None] * layers
        self.seen_tokens = 0

    def update(self, index: int, row: torch.Tensor) -> None:
        self.rows[index] = row


class SlowMixer(nn.Module):
    """Running sums over time by a Python loop."""

    def __init__(self, index: int, width: int) -> None:
        super().__init__()
        self.layer_idx = index
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, memory: Memory | None = None) -> torch.Tensor:
        x = self.proj(x)
        held = memory.rows[self.layer_idx] if memory is not None else None
        total = held if held is not None else x.new_zeros(x.shape[0], x.shape[2])
        outs = []
        for step in range(x.shape[1]):
            total = total * 0.9 + x[:, step]
            outs.append(torch.tanh(total))
        if memory is not None:
            memory.update(self.layer_idx, total)
        return torch.stack(outs, 1)


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class SmallLM(nn.Module):
    def __init__(self, layers: int = 2, width: int = 16, vocabulary: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(Scale(width) for _ in range(layers))
        self.mixers = nn.ModuleList(SlowMixer(index, width) for index in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor, memory: Memory | None = None) -> torch.Tensor:
        x = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x), memory=memory)
        if memory is not None:
            memory.seen_tokens += ids.shape[1]
        return self.head(x)

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, steps: int = 4) -> torch.Tensor:
        memory = Memory(len(self.mixers))
        fed = ids
        for _ in range(steps):
            fed = self(fed, memory)[:, -1:].argmax(-1)
            ids = torch.cat([ids, fed], 1)
        return ids


def small_lm(**shape: Any) -> SmallLM:
    torch.manual_seed(0)
    return SmallLM(**shape).eval()


FASTER = '''"""The running sum as one product with a triangular matrix of powers."""
import torch


def forward(module, state, x, memory=None):
    x = module.proj(x)
    held = memory.rows[module.layer_idx] if memory is not None else None
    steps = x.shape[1]
    at = torch.arange(steps, device=x.device)
    powers = torch.tril(0.9 ** (at[:, None] - at[None, :]).clamp(min=0).to(x.dtype))
    total = powers @ x
    if held is not None:
        total = total + (0.9 ** (at + 1).to(x.dtype))[None, :, None] * held[:, None]
    if memory is not None:
        memory.update(module.layer_idx, total[:, -1])
    return torch.tanh(total)
'''
WRONG = FASTER.replace("0.9 ** (at[:, None]", "0.8 ** (at[:, None]")
FORGETFUL = FASTER.replace("memory.update(module.layer_idx, total[:, -1])", "pass")
SLOWER = FASTER.replace(
    "    return torch.tanh(total)", "    for _ in range(6000):\n        total = total + 0.0\n    return torch.tanh(total)"
)
NEVER = FASTER + "\n\ndef accepts(module, state, *args, **kwargs):\n    return False\n"
RAISING = FASTER.replace("    x = module.proj(x)", "    raise ValueError('no')", 1)
UNPREPARED = FASTER + "\n\ndef prepare(module, **config):\n    raise RuntimeError('out of luck')\n"


def tiny_mamba(hidden_size: int = 16) -> MambaForCausalLM:
    """The library's Mamba with two small layers, the same weights at every call."""
    config = MambaConfig(
        vocab_size=64,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        state_size=4,
        time_step_rank=2,
        eos_token_id=None,
        bos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return MambaForCausalLM(config).eval()
