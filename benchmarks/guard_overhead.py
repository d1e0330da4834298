"""What a patch costs per call when the candidate itself costs nothing: guard, weights check, dispatch and counters, in microseconds.

Run: python benchmarks/guard_overhead.py
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from llm4llm.runtime.apply import PatchSpec, apply
from llm4llm.runtime.domain import compile_guard, merge, observe

CANDIDATE = "def forward(module, state, *args, **kwargs):\n    return args[0] if args else kwargs['hidden_states']\n"


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Layer:
    """Stands for one layer of a growing cache."""

    def __init__(self) -> None:
        self.keys = torch.zeros(1, 4, 16, 16)
        self.values = torch.zeros(1, 4, 16, 16)
        self.is_initialized = True
        self.dtype, self.device = torch.float32, torch.device("cpu")


class Cache:
    """Stands for a cache with one entry per layer."""

    def __init__(self) -> None:
        self.layers = [Layer() for _ in range(4)]
        self.layer_class_to_replicate = None
        self.offloading = False


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer_idx = 2
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, nn.Linear(64, 64, bias=False))

    def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return hidden_states


def per_call_us(call: Callable[[], Any], repeats: int = 2000, rounds: int = 15) -> float:
    """Median over rounds of the mean duration of one call."""
    means = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        means.append((time.perf_counter() - start) / repeats * 1e6)
    return statistics.median(means)


def report(title: str, module: nn.Module, calls: list[tuple[tuple[Any, ...], dict[str, Any]]], effects: bool) -> None:
    domain = merge([observe(module, args, kwargs) for args, kwargs in calls], effects=effects)
    args, kwargs = calls[-1]
    guard = compile_guard(domain, module)
    assert guard(args, kwargs) is None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "candidate.py"
        file.write_text(CANDIDATE)
        handle = apply(module, [PatchSpec("nothing", file, domain, ("",))])
        patched = per_call_us(lambda: module(*args, **kwargs))
        assert not handle.status()["sites"][0]["fallbacks"]
        handle.remove()
        plain = per_call_us(lambda: module(*args, **kwargs))
    alone = per_call_us(lambda: guard(args, kwargs))
    print(f"{title:48} guard {alone:5.1f} us   guard + dispatch {patched - plain:5.1f} us   (plain call {plain:.1f} us)")


def main() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = [torch.zeros(batch, length, 64) for batch, length in ((1, 4), (2, 9))]
        report("one tensor", Norm(), [((row,), {}) for row in rows], effects=False)
        calls = []
        for row in rows:
            batch, length = row.shape[:2]
            tables = (torch.zeros(batch, length, 16), torch.zeros(batch, length, 16))
            mask = torch.zeros(batch, 1, length, 16)
            place = torch.arange(length)
            calls.append(
                (
                    (),
                    {
                        "hidden_states": row,
                        "position_embeddings": tables,
                        "attention_mask": mask,
                        "cache": Cache(),
                        "cache_position": place,
                    },
                )
            )
            calls[-1][1]["use_cache"] = True
        report("attention: 6 keywords, 6 tensors, a cache", Attention(), calls, effects=False)
        report("the same, original changes its cache", Attention(), calls, effects=True)


if __name__ == "__main__":
    main()
