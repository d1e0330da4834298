"""Sieve in one kernel, sixteen rows per program."""

import torch
import triton
import triton.language as tl


@triton.jit
def _sieve(scores_ptr, opened_ptr, sharpness_ptr, out_ptr, count, heads, length, total, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    known = row < count
    inside = known & (column < total)
    head = row // length % heads
    batch = row // length // heads
    opened = tl.load(opened_ptr + batch * total + column, mask=inside, other=0) != 0
    sharpness = tl.load(sharpness_ptr + head, mask=known, other=0.0).to(tl.float32)
    x = tl.load(scores_ptr + row * total + column, mask=inside, other=0.0).to(tl.float32) * sharpness
    largest = tl.max(tl.where(opened, x, float("-inf")), axis=1)[:, None]
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    power = tl.where(opened, tl.exp(x - largest), 0.0)
    y = power / tl.sum(power, axis=1)[:, None]
    tl.store(out_ptr + row * total + column, y.to(out_ptr.dtype.element_ty), mask=inside)


def accepts(module, state, scores, opened):
    return scores.is_contiguous() and opened.is_contiguous() and opened.shape[1] == opened.shape[2] == 1


def forward(module, state, scores, opened):
    _, heads, length, total = scores.shape
    out = torch.empty_like(scores)
    count = scores.numel() // total
    block = triton.next_power_of_2(total)
    _sieve[(triton.cdiv(count, 16),)](scores, opened, module.sharpness, out, count, heads, length, total, ROWS=16, BLOCK=block)
    return out
