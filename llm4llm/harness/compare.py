"""The error rule: how far a candidate may be from exact arithmetic, and where it is farthest.

Errors are measured per row of the last dimension, or of the last ones where those are short, against the oracle (harness/oracle.py). With,
for one tensor,

    h_r      the largest |exact| of row r, but at least 1e-2 of the largest row's: the row's height
    own_r    the largest |original - exact| of row r: what the original itself is off by in that row
    usual    the relative error own_r / h_r that most rows of this tensor stay under (75% of the rows of the captured calls, the median of
             this call's, 90% of this call's where its inputs were made here)
    floor    16 eps in float32, 2 eps in bfloat16 and float16: a result that is rounded once more is not wrong

row r of a candidate is right if its largest |candidate - exact| is at most

    limit_r  = max(8 own_r, max(8 usual, floor) h_r)

There is no absolute tolerance: a row of values near 1e-6 is measured against 1e-6. Rows in which the original is off (pad rows,
cancellation) allow a candidate the same, other rows do not. NaN and infinities have to be where the original has them, except where
only the original's own rounding made them: there the exact value is right as well.
"""

import math
from dataclasses import dataclass

import torch

from llm4llm.harness.oracle import Truth
from llm4llm.harness.portrait import Leaf, Tree, first_difference

OWN_FACTOR = 8.0
SMALL_ROW = 1e-2
# the largest error of a few numbers says little: a row of one that happens to be rounded well would allow a candidate nothing
SHORT_ROW = 4
FLOOR_EPS = {"float64": 4096.0, "float32": 16.0}
FLOOR_EPS_LOW = 2.0
# without an oracle nothing is known of the original's own error: allow as much as a reordered sum of a few thousand terms needs
FLOOR_EPS_OWN = {"float64": 4096.0, "float32": 256.0}
FLOOR_EPS_OWN_LOW = 8.0
USUAL_SHARE = 0.75
USUAL_SHARE_MADE = 0.9
_TINY = 1e-300


@dataclass(frozen=True)
class Fault:
    """Why an answer is wrong. `excess` is the error in units of its limit, infinite where no number can say it."""

    kind: str
    reason: str
    excess: float = math.inf
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Distance:
    """How far a tensor is from right, in units of the limit, and the element where it is farthest."""

    excess: float
    row: int
    column: int
    error: float
    limit: float
    wrong_rows: int
    rows: int
    pattern: bool = False  # NaN or infinity out of place


def floor_of(dtype: str, oracle: str) -> float:
    """The relative error that is always allowed."""
    eps = float(torch.finfo(getattr(torch, dtype)).eps)
    if oracle == "own":
        return FLOOR_EPS_OWN.get(dtype, FLOOR_EPS_OWN_LOW) * eps
    return FLOOR_EPS.get(dtype, FLOOR_EPS_LOW) * eps


def in_rows(value: torch.Tensor) -> torch.Tensor:
    """float64 [rows, numbers of a row]; complex numbers as pairs. Short last dimensions are joined with those before them."""
    if value.is_complex():
        value = torch.view_as_real(value).flatten(-2)
    width = 1
    for size in reversed(value.shape):
        width *= size
        if width >= SHORT_ROW or not width:
            break
    return value.detach().double().reshape(-1, width) if width else value.detach().double().reshape(0, 1)


def own_error(own: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The original's error and the height of each row, float64 [rows]; places where either is not finite are left out."""
    own, exact = in_rows(own), in_rows(exact)
    odd = ~(own.isfinite() & exact.isfinite())
    exact = exact.masked_fill(odd, 0.0)
    height = exact.abs().amax(-1)
    height = height.clamp(min=max(SMALL_ROW * float(height.max()), _TINY))
    return (own.masked_fill(odd, 0.0) - exact).abs().amax(-1), height


def relative_errors(truth: Truth) -> dict[str, torch.Tensor]:
    """The original's relative error of every row, by path."""
    found: dict[str, torch.Tensor] = {}
    for one in truth.leaves:
        if one.values is None or one.path not in truth.exact or not one.values.numel():
            continue
        if one.values.is_floating_point() or one.values.is_complex():
            own, height = own_error(one.values, truth.exact[one.path])
            found[one.path] = own / height
    return found


def share_under(values: torch.Tensor, share: float) -> float:
    """The value that this share of all values stays under."""
    ordered = values.sort().values
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


def usual_errors(truths: list[Truth], share: float = USUAL_SHARE) -> dict[str, float]:
    """The relative error that most rows stay under, pooled over some calls, by path."""
    pooled: dict[str, list[torch.Tensor]] = {}
    for truth in truths:
        for path, errors in relative_errors(truth).items():
            pooled.setdefault(path, []).append(errors)
    return {path: share_under(torch.cat(parts), share) for path, parts in pooled.items()}


def distance(got: torch.Tensor, own: torch.Tensor, exact: torch.Tensor, usual: float, floor: float) -> Distance:
    """How far `got` is from `exact` by the rule above; all three on the CPU and of one shape."""
    own_r, height = own_error(own, exact)
    mine, original, true = in_rows(got), in_rows(own), in_rows(exact)
    usual = max(usual, float((own_r / height).median()))
    limit = torch.maximum(OWN_FACTOR * own_r, max(OWN_FACTOR * usual, floor) * height)
    error = (mine - true).abs()
    # where only the original's rounding left the finite numbers, either value is right; where both did, the same one is required
    odd = ~original.isfinite() | ~true.isfinite()
    alike = (mine == original) | (mine.isnan() & original.isnan())
    near = error <= limit[:, None]
    misplaced = torch.where(odd, ~(alike | (true.isfinite() & near)), ~mine.isfinite())
    error = torch.where(odd, 0.0, error)
    if bool(misplaced.any()):
        place = int(misplaced.flatten().int().argmax())
        row, column = divmod(place, mine.shape[-1])
        return Distance(math.inf, row, column, math.inf, float(limit[row]), int(misplaced.any(-1).sum()), len(limit), True)
    ratio = error.amax(-1) / limit
    row = int(ratio.argmax())
    column = int(error[row].argmax())
    return Distance(float(ratio[row]), row, column, float(error[row, column]), float(limit[row]), int((ratio > 1).sum()), len(limit))


def contract_fault(got: Leaf, want: Leaf) -> Fault | None:
    """A difference in type, shape, dtype, device or, for results, stride."""
    name = want.path
    if got.type != want.type:
        return Fault("type", f"{name} is a {got.type}; the original gives a {want.type}")
    if got.shape != want.shape:
        return Fault("shape", f"{name} has shape {list(got.shape)}; the original gives {list(want.shape)}")
    if got.dtype != want.dtype:
        return Fault("dtype", f"{name} is {got.dtype}; the original gives {want.dtype}")
    if got.device != want.device:
        return Fault("device", f"{name} is on {got.device}; the original's is on {want.device}")
    if got.requires_grad and not want.requires_grad and name.startswith("result"):
        return Fault("requires_grad", f"{name} requires gradients; the original's does not")
    if got.stride != want.stride and name.startswith("result"):
        return Fault("stride", f"{name} has strides {list(got.stride)} where the original's has {list(want.stride)}")
    return None


def compare(tree: Tree, leaves: list[Leaf], truth: Truth, usual: dict[str, float]) -> tuple[Fault | None, float]:
    """The gravest fault of an answer, and the largest error in units of its limit. `usual` holds relative errors by path."""
    for part in ("result", "args", "kwargs", "kept"):
        different = first_difference(tree.get(part), truth.tree[part], part)
        if different:
            kind = "structure" if part == "result" else "effect"
            return Fault(kind, different), math.inf
    worst, fault = 0.0, None
    for got, want in zip(leaves, truth.leaves, strict=True):
        found = contract_fault(got, want)
        if found is not None:
            return found, math.inf
        found, excess = _values_fault(got, want, truth, usual.get(want.path, 0.0))
        if found is not None and (fault is None or excess > fault.excess):
            fault = found
        worst = max(worst, excess)
    return fault, worst


def _values_fault(got: Leaf, want: Leaf, truth: Truth, usual: float) -> tuple[Fault | None, float]:
    name, is_result = want.path, want.path.startswith("result")
    if want.path in truth.unchanged:
        if got.values is None:
            return None, 0.0
        kind = "input_mutated" if name.startswith(("args", "kwargs")) else "effect"
        return Fault(kind, f"{name} was changed; the original leaves it as it is"), math.inf
    if got.values is None or want.values is None:
        return Fault("effect", f"{name} was left unchanged; the original changes it"), math.inf
    if not want.values.numel():
        return None, 0.0
    if not (want.values.is_floating_point() or want.values.is_complex()):
        return _exact_fault(got.values, want, truth.exact.get(name))
    exact = truth.exact.get(name, want.values)
    real = "float64" if want.dtype == "complex128" else "float32" if want.values.is_complex() else want.dtype
    far = distance(got.values, want.values, exact, usual, floor_of(real, truth.oracle if name in truth.exact else "own"))
    if far.excess <= 1:
        return None, far.excess
    details = _where(got.values, exact, far)
    said = (
        "is not finite where the original is (or the other way round)" if far.pattern else f"is off by {far.excess:.3g} times its allowance"
    )
    return Fault("numerical" if is_result else "effect", f"{name} {said}", far.excess, details), far.excess


def _exact_fault(got: torch.Tensor, want: Leaf, exact: torch.Tensor | None) -> tuple[Fault | None, float]:
    assert want.values is not None
    wrong = got != want.values
    if exact is not None and exact.shape == got.shape:
        # an integer that depends on rounding (argmax of a near tie) may also be the exact one
        wrong = wrong & (got != exact.to(got.dtype))
    count = int(wrong.sum())
    if not count:
        return None, 0.0
    kind = "numerical" if want.path.startswith("result") else "effect"
    return Fault(kind, f"{want.path} differs in {count} of {got.numel()} {want.dtype} elements"), math.inf


def _where(got: torch.Tensor, exact: torch.Tensor, far: Distance) -> tuple[str, ...]:
    """Lines that say where the error sits: element, magnitude, and whether it is all over, a tail of columns or some rows."""
    mine, true = in_rows(got), in_rows(exact)
    index, rest = [], far.row * mine.shape[-1] + far.column
    for size in reversed([*got.shape, 2] if got.is_complex() else got.shape):
        index.append(rest % size)
        rest //= size
    place = list(reversed(index))
    lines = [
        f"worst element {place} of {list(got.shape)}: {float(mine[far.row, far.column]):.6g}, exact {float(true[far.row, far.column]):.6g}",
        f"error {far.error:.3g}, allowed {far.limit:.3g} in that row; {far.wrong_rows} of {far.rows} rows are wrong",
    ]
    off = ~((mine[far.row] - true[far.row]).abs() <= far.limit)
    columns = off.nonzero().flatten()
    if 0 < len(columns) < mine.shape[-1]:
        span = (int(columns[0]), int(columns[-1]))
        shape = "a tail" if span[1] == mine.shape[-1] - 1 and len(columns) == span[1] - span[0] + 1 else "columns"
        lines.append(f"in that row {len(columns)} of {mine.shape[-1]} columns are wrong: {shape} {span[0]} to {span[1]}")
    if far.pattern:
        lines.append(f"{int(mine.isnan().sum())} NaN in the candidate's tensor (memory that was never written holds NaN here)")
    elif float(mine.abs().max()) == 0.0:
        lines.append("the candidate's tensor is all zeros")
    return tuple(lines)
