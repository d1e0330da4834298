"""Vote with a factor of one kept in eight bits."""

import torch
import triton
import triton.language as tl


@triton.jit
def _shares(x_ptr, out_ptr, width, one, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + column, mask=column < width, other=float("-inf"))
    factor = tl.full((BLOCK,), 1.0, tl.float32) * one
    factor = factor.to(tl.float8e4nv).to(tl.float32)
    power = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * width + column, power / tl.sum(power, axis=0) * factor, mask=column < width)


def forward(module, state, x):
    scores = module.score(x).float()
    out = torch.empty_like(scores)
    _shares[(scores.numel() // scores.shape[-1],)](scores, out, scores.shape[-1], 1.0, BLOCK=1024)
    return out.to(x.dtype)
