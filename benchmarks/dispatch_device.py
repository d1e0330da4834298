"""What one patched call costs the host on a CUDA machine, part by part: RMSNorm of one row, the smallest module that a seed replaces.

    python benchmarks/dispatch_device.py          needs torch and triton; runs from the checkout, in about ten seconds

Every line is the median host time of one call in microseconds, taken without waiting for the GPU. The parts tell where the time of a patched
call goes when it is slower in place than the module it replaces.
"""

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from llm4llm.runtime import domain  # noqa: E402
from llm4llm.runtime.apply import PatchSpec, apply  # noqa: E402

WIDTH = 2560
SEED = ROOT / "patches" / "rms_norm" / "candidate.py"


class Norm(nn.Module):
    """The usual eager RMSNorm: float32 inside, rounded before the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(WIDTH))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        kept = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon)).to(kept)


def microseconds(call: Callable[[], Any], calls: int = 200, rounds: int = 15) -> float:
    """Median over rounds; the queue is drained between rounds, so that no call waits for room in it."""
    for _ in range(20):
        call()
    samples = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - started) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(samples)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    model = nn.ModuleDict({"norm": Norm()}).to("cuda", torch.bfloat16).eval()
    norm, x = model["norm"], torch.randn(1, 1, WIDTH, device="cuda", dtype=torch.bfloat16)
    spec = importlib.util.spec_from_file_location("seed", SEED)
    assert spec is not None
    assert spec.loader is not None
    seed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(seed)
    with torch.inference_mode():
        state = seed.prepare(norm, **seed.CONFIGS[0])
        facts = domain.merge([domain.observe(norm, (x,), {})], effects=False)
        lines = {"module, unpatched": lambda: norm(x)}
        lines["seed: accepts"] = lambda: seed.accepts(norm, state, x)
        lines["seed: forward"] = lambda: seed.forward(norm, state, x)
        lines["torch.empty"] = lambda: torch.empty(x.shape, dtype=x.dtype, device=x.device)
        lines["is_current_stream_capturing"] = torch.cuda.is_current_stream_capturing
        lines["current_device"] = torch.cuda.current_device
        lines["compiler.is_compiling"] = torch.compiler.is_compiling
        guard = domain.compile_guard(facts, norm)
        lines["guard"] = lambda: guard((x,), {})
        for name, call in lines.items():
            print(f"{name:32} {microseconds(call):8.2f} us", flush=True)
        handle = apply(model, [PatchSpec("rms_norm", SEED, facts, ("norm",), dict(seed.CONFIGS[0]))])
        print(f"{'module, patched':32} {microseconds(lambda: norm(x)):8.2f} us")
        print(handle.status()["sites"])
        handle.remove()


if __name__ == "__main__":
    main()
