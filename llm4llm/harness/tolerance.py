"""How far apart two runs of one computation may be when only rounding differs.

The error of a float tensor is the largest |patched - unpatched| of a row (last dimension) over that row's largest magnitude. Allowed is the
largest of: FLOOR eps of the dtype; NOISE times the difference between two unpatched runs; GROWTH times what rounding noise at the
patched modules grows into at this place, measured by a run with such noise, since a deep or badly conditioned model amplifies rounding.
Never more than CAP, which an output of zeros or another layer's output does not meet. Where noise grows beyond CAP, whole runs can't be
compared at all, and patches are compared with the originals site by site, see site_check.py.
"""

import math

import torch

# sums of thousands of products in another order: a few eps in 16 bit, where accumulators have 32 bit, tens to hundreds in 32 bit
FLOOR = {torch.float64: 4096.0, torch.float32: 256.0, torch.float16: 16.0, torch.bfloat16: 4.0}
NOISE = 4.0
GROWTH = 6.0
CAP = 0.25
SMALL_ROW = 1e-3  # rows below this part of the tensor's largest magnitude are measured against that part


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest row error as defined above; infinite if NaN or infinity stand where the other has none, or if shapes differ."""
    if got.shape != want.shape:
        return math.inf
    mine, true = _real(got), _real(want)
    odd = ~torch.isfinite(true)
    if not torch.equal(torch.isfinite(mine), ~odd) or not torch.equal(mine[odd].nan_to_num(), true[odd].nan_to_num()):
        return math.inf
    if not true.numel():
        return 0.0
    true, mine = true.masked_fill(odd, 0.0), mine.masked_fill(odd, 0.0)
    height = true.abs().amax(-1, keepdim=True) if true.dim() else true.abs()
    largest = float(height.max())
    if largest == 0.0:
        return math.inf if bool(mine.any()) else 0.0
    return float(((mine - true).abs() / height.clamp(min=SMALL_ROW * largest)).max())


def _real(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.double()


def allowance(dtype: torch.dtype, noise: float, growth: float) -> float:
    """The error that a tensor of this dtype may have, given two unpatched runs' difference and the grown rounding noise."""
    floor = FLOOR.get(dtype, 4.0) * torch.finfo(dtype).eps
    return min(CAP, max(floor, NOISE * noise, GROWTH * growth))


def amplified(off: float, growth: float) -> bool:
    """Whether an error lies beyond CAP alone: rounding noise at the patched modules grows as far."""
    return off <= GROWTH * growth
