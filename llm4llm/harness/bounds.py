"""What limits a module family: an estimate from counted work, stated so that it can be checked."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from llm4llm.harness.attribution import BUSY, Row

Bound = Literal["memory", "compute", "launch", "host", "unknown"]

# Floating point operations per byte above which arithmetic, not memory, is the limit, by bytes per number: dense tensor-core peak over
# memory bandwidth of current data-centre parts (H100 and H200 data sheets: 989 TFLOP/s over 3.35 to 4.8 TB/s in 16 bit; TF32 is off by
# default, so 32 bit has 67 TFLOP/s).
GPU_BALANCE = {2: 200.0, 4: 15.0, 8: 7.0}
HOST_SHARE = 0.5  # work that the machine could do in less than this part of the time: calling it is the limit

METHOD = (
    "Bounds are estimates from one counted prefill and one counted decode step: operations, bytes of operands and results, and floating "
    "point operations of products, convolutions and attention, against measured rates (CPU) or data-sheet balance (GPU)."
)


@dataclass(frozen=True)
class Machine:
    """What bounds are told by. The rates are measured on the CPU and not used where a GPU does the work."""

    cuda: bool
    bytes_s: float = 1e10
    flops_s: float = 1e11


def machine(cuda: bool) -> Machine:
    """The machine with its rates: a 32 MiB copy and a 384-wide single-precision product, best of five each; about 30 ms."""
    if cuda:
        return Machine(cuda)
    with torch.no_grad():
        source, target, square = torch.ones(8 << 20), torch.empty(8 << 20), torch.ones(384, 384)
        copy_s = _best(lambda: target.copy_(source))
        product_s = _best(lambda: square @ square)
    return Machine(cuda, 2 * source.numel() * 4 / copy_s, 2 * 384**3 / product_s)


def _best(run: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def bound(row: Row, on: Machine) -> Bound:
    """GPU: `launch` if the device is busy for less than 80 % of the family's time, else by operations per byte against the balance.

    CPU: `host` if bytes and operations at the machine's rates explain less than half of the time, else the larger of the two.
    """
    if on.cuda and (row.device_ms is None or row.part_ms <= 0):
        return "unknown"
    if on.cuda and row.device_ms is not None and row.device_ms < BUSY * max(row.host_ms, row.part_ms):
        return "launch"
    if row.work is None or not row.work.bytes or row.host_ms <= 0:
        return "unknown"
    if on.cuda:
        sizes = [item.element_size() for item in row.family.module.parameters()]
        return "compute" if row.work.flops / row.work.bytes > GPU_BALANCE.get(min(sizes, default=2), 200.0) else "memory"
    moving_ms, computing_ms = row.work.bytes / on.bytes_s * 1e3, row.work.flops / on.flops_s * 1e3
    if max(moving_ms, computing_ms) < HOST_SHARE * row.host_ms:
        return "host"
    return "compute" if computing_ms > moving_ms else "memory"
