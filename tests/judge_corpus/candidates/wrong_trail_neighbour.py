"""Trail with one program per row of memory, reading the rows before its own."""

import torch
import triton
import triton.language as tl


@triton.jit
def _trail(x_ptr, weight_ptr, bias_ptr, out_ptr, width, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    total = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        place = row + tap - (TAPS - 1)
        x = tl.load(x_ptr + place * width + column, mask=inside & (place + column >= column), other=0.0).to(tl.float32)
        total += x * tl.load(weight_ptr + column * TAPS + tap, mask=inside, other=0.0).to(tl.float32)
    y = total / (1.0 + tl.exp(-total))
    tl.store(out_ptr + row * width + column, y.to(out_ptr.dtype.element_ty), mask=inside)


def forward(module, state, x):
    x = x.contiguous()
    out = torch.empty_like(x)
    _trail[(x.shape[0] * x.shape[1],)](x, module.weight, module.bias, out, x.shape[2], TAPS=module.taps, BLOCK=64)
    return out
