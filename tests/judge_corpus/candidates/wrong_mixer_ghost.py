"""Mixer with a kernel for the gate."""

import torch
import triton
import triton.language as tl


@triton.jit
def _gate(gate_ptr, up_ptr, out_ptr, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    gate = tl.load(gate_ptr + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, (up / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty), mask=inside)


def forward(module, state, x):
    if x.dim() != 3 or x.shape[-1] % 32:
        return type(module).forward(module, x)
    gate, up = module.gate(x), module.up(x)
    out = torch.empty_like(gate)
    _gate[(triton.cdiv(gate.numel(), 256),)](gate, up, out, gate.numel(), BLOCK=256)
    return module.down(out)
