"""What one launch of a small Triton kernel costs the host on a CUDA machine, by the way it is launched, hot and between other work.

    python benchmarks/launch_device.py          needs torch and triton; about fifteen seconds

"hot" is a loop of nothing else. "in place" is the same call among a few torch operations, as in a model, less the same loop without it:
there the caches hold other code, and a call costs more. Microseconds of the host's thread, without waiting for the GPU.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def _scale(  # noqa: PLR0913
    x, weight, out, rows, row_stride, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FLAG: tl.constexpr
):
    column = tl.arange(0, BLOCK)
    value = tl.load(x + column, mask=column < WIDTH).to(tl.float32)
    scale = tl.load(weight + column, mask=column < WIDTH).to(tl.float32)
    tl.store(out + column, (value * scale + eps).to(out.dtype.element_ty), mask=column < WIDTH)


def microseconds(call: Callable[[], Any], calls: int = 100, rounds: int = 21) -> float:
    for _ in range(20):
        call()
    samples = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.thread_time()
        for _ in range(calls):
            call()
        samples.append((time.thread_time() - started) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(samples)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    width = 2560
    x, weight = (torch.randn(1, 1, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    other, matrix = torch.randn(1, 8, 64, device="cuda", dtype=torch.bfloat16), torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    out, row = torch.empty_like(x), weight.reshape(width)
    tensors, sizes = (x, weight, out), (1, width, 1e-6, width, 4096, True)
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    compiled = _scale[(1,)](*tensors, *sizes, num_warps=4)
    runner, run, function, packed = compiled[(1, 1, 1)], compiled.run, compiled.function, compiled.packed_metadata
    device = torch.cuda.current_device()
    stream_of = torch._C._cuda_getCurrentRawStream

    def raw() -> None:
        run(1, 1, 1, stream_of(device), function, packed, None, None, None, *addresses, *sizes)

    ways: dict[str, Callable[[], Any]] = {
        "kernel[grid](tensors)": lambda: _scale[(1,)](*tensors, *sizes, num_warps=4),
        "compiled[grid](tensors)": lambda: compiled[(1, 1, 1)](*tensors, *sizes),
        "compiled[grid](addresses)": lambda: compiled[(1, 1, 1)](*addresses, *sizes),
        "kept runner(addresses)": lambda: runner(*addresses, *sizes),
        "compiled.run(addresses)": raw,
        "torch.neg(x, out=out)": lambda: torch.neg(x, out=out),
        "x.float()": x.float,
        "torch.empty_like": lambda: torch.empty_like(x),
        "torch.nn.functional.rms_norm": lambda: torch.nn.functional.rms_norm(x, (width,), row, 1e-6),
        "stream_of(device)": lambda: stream_of(device),
    }

    def model(call: Callable[[], Any]) -> None:
        call()
        y = torch.nn.functional.linear(other, matrix)
        y = torch.cat((y, other), dim=1).transpose(1, 2).contiguous()
        call()
        y = torch.nn.functional.silu(y).float().pow(2).mean(-1)
        call()
        (y.rsqrt() * 2.0).to(torch.bfloat16)

    def nothing() -> None:
        return None

    with torch.inference_mode():
        empty = microseconds(lambda: model(nothing))
        print(f"{'':32} {'hot':>8} {'in place':>9}")
        for name, call in ways.items():
            inside = (microseconds(lambda call=call: model(call)) - empty) / 3
            print(f"{name:32} {microseconds(call):8.2f} {inside:9.2f}", flush=True)


if __name__ == "__main__":
    main()
