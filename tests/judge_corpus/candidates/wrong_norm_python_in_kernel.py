"""MeanNorm with the row's parts summed one after the other."""

import torch
import triton
import triton.language as tl


@triton.jit
def _norm(x_ptr, weight_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    parts = {"low": tl.where(column < 32, x, 0.0), "high": tl.where(column < 32, 0.0, x)}
    size = sum([tl.sum(tl.abs(part), axis=0) for part in parts.values()]) / width
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + column, (x / (size + eps) * weight).to(out_ptr.dtype.element_ty), mask=inside)


def forward(module, state, x):
    x = x.contiguous()
    out = torch.empty_like(x)
    width = x.shape[-1]
    _norm[(x.numel() // width,)](x, module.weight, out, width, module.eps, BLOCK=64)
    return out
