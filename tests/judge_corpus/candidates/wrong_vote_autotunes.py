"""Vote whose kernel finds its own block size."""

import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 1024}), triton.Config({"BLOCK": 2048})], key=["width"])
@triton.jit
def _shares(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + column, mask=column < width, other=float("-inf")).to(tl.float32)
    power = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * width + column, power / tl.sum(power, axis=0), mask=column < width)


def forward(module, state, x):
    scores = module.score(x).float()
    out = torch.empty_like(scores)
    _shares[(scores.numel() // scores.shape[-1],)](scores, out, scores.shape[-1])
    return out.to(x.dtype)
