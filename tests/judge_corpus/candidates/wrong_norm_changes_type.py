"""MeanNorm with the row's sum in steps of sixteen columns."""

import torch
import triton
import triton.language as tl


@triton.jit
def _norm(x_ptr, weight_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = 0
    for start in range(0, width, 16):
        step = start + tl.arange(0, 16)
        total += tl.sum(tl.abs(tl.load(x_ptr + row * width + step, mask=step < width, other=0.0).to(tl.float32)), axis=0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, (x / (total / width + eps) * weight).to(out_ptr.dtype.element_ty), mask=inside)


def forward(module, state, x):
    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    _norm[(x.numel() // width,)](x, module.weight, out, width, module.eps, BLOCK=64)
    return out
