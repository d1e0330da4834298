"""Whether a patched driver call did the same as the unpatched one: structure, tokens, logits, outputs and state.

Integers are equal. A generated token may differ only where the unpatched logits of the two best tokens are closer than twice the observed
logits error, which itself must be within its allowance (for a token that was sampled: where the logits are within their allowance); what
comes after that step can't be compared.
"""

from dataclasses import dataclass
from statistics import median

import torch

from llm4llm.harness.evidence import Evidence, Leaf
from llm4llm.harness.tolerance import allowance, amplified, error
from llm4llm.harness.wording import counted


@dataclass(frozen=True)
class Finding:
    """One kind of comparison over a driver call."""

    name: str
    passed: bool
    detail: str
    excused: bool = False  # a difference that rounding explains
    amplified: bool = False  # not passed, but rounding noise grows as far in this model: whole runs can't tell right from wrong here


@dataclass(frozen=True)
class Split:
    """The first generated token that differs between two runs; logits up to and including `step` still come from equal inputs."""

    path: str
    row: int
    column: int
    step: int


@dataclass
class Agreement:
    """Evidence of one driver call: unpatched twice, unpatched with rounding noise (None: not run), and patched."""

    once: Evidence
    again: Evidence
    shaken: Evidence | None
    patched: Evidence

    def findings(self) -> list[Finding]:
        """Ends with the first comparison that makes the rest meaningless."""
        split = first_split(self.once, self.patched)
        found = [self._structure(split)]
        if not found[0].passed:
            return found
        found.append(self._tokens(split))
        if self.once.logits:
            found.append(self._logits(split))
        if found[1].passed and split is None:
            found.append(self._floats("outputs", [run.result if run else None for run in self._runs()]))
            found.append(self._floats("state", [run.state if run else None for run in self._runs()]))
        return found

    def _runs(self) -> tuple[Evidence, Evidence, Evidence | None, Evidence]:
        return self.once, self.again, self.shaken, self.patched

    def _structure(self, split: Split | None) -> Finding:
        want, got = self.once.result, self.patched.result
        if split is None:
            different = sorted(want.keys() ^ got.keys()) or sorted(path for path in want if want[path].kind != got[path].kind)
            if different:
                one, two = (held[different[0]].kind if different[0] in held else "nothing" for held in (got, want))
                return Finding("structure", False, f"{different[0] or 'the result'} is {one} instead of {two}")
        return Finding("structure", True, f"{len(want)} {'leaf' if len(want) == 1 else 'leaves'}")

    def _tokens(self, split: Split | None) -> Finding:
        if split is not None:
            return self._excused(split)
        whole = [path for path, leaf in self.once.result.items() if leaf.is_tensor and not _floating(leaf)]
        wrong = next((path for path in whole if not torch.equal(self.once.result[path].value, self.patched.result[path].value)), None)
        if wrong is not None:
            want, got = self.once.result[wrong].value, self.patched.result[wrong].value
            return Finding("tokens", False, f"{wrong or 'the result'} differs in {int((want != got).sum())} of {want.numel()} elements")
        scalars = [path for path, leaf in self.once.result.items() if not leaf.is_tensor and not _alike(leaf, self.patched.result[path])]
        if scalars:
            one, two = self.patched.result[scalars[0]].value, self.once.result[scalars[0]].value
            return Finding("tokens", False, f"{scalars[0] or 'the result'} is {one!r} instead of {two!r}")
        return Finding("tokens", True, f"{len(whole)} integer tensors are equal")

    def _excused(self, split: Split) -> Finding:
        """Rounding explains a differing token only where the unpatched model itself was undecided."""
        before, after = self.once.logits[split.step], self.patched.logits[split.step]
        where = f"token {split.step} of row {split.row}"
        off, allowed = error(after, before), self._logits_allowance()
        if off > allowed:
            text = f"{where} differs, and its logits are off by {off:.3g} (allowed {allowed:.3g} of the row's largest)"
            return Finding("tokens", False, text, amplified=self._logits_amplified(off))
        best = before[split.row].topk(2)
        margin, observed = float(best.values[0] - best.values[1]), float((after[split.row] - before[split.row]).abs().max())
        if int(best.indices[0]) != int(_rows(self.once.result[split.path])[split.row, split.column]):
            return Finding("tokens", True, f"{where} differs; it is sampled and its logits agree; later tokens were not compared", True)
        if margin >= 2.0 * observed:
            return Finding("tokens", False, f"{where} differs though its logits margin {margin:.3g} is clear (logits error {observed:.3g})")
        text = f"{where} differs where its logits margin {margin:.3g} is below twice the logits error {observed:.3g}"
        return Finding("tokens", True, f"{text}; later tokens were not compared", True)

    def _logits_error(self, other: Evidence | None) -> float:
        if other is None:
            return 0.0
        split = first_split(self.once, other)
        upto = len(self.once.logits) if split is None else split.step + 1
        pairs = list(zip(other.logits, self.once.logits, strict=False))[:upto]
        return max((error(got, want) for got, want in pairs), default=0.0)

    def _logits_allowance(self) -> float:
        return allowance(self.once.logits_dtype, self._logits_error(self.again), self._logits_error(self.shaken))

    def _logits_amplified(self, off: float) -> bool:
        return amplified(off, self._logits_error(self.shaken))

    def _logits(self, split: Split | None) -> Finding:
        if split is None and len(self.once.logits) != len(self.patched.logits):
            return Finding("logits", False, f"{counted(len(self.patched.logits), 'forward')} instead of {len(self.once.logits)}")
        off, allowed = self._logits_error(self.patched), self._logits_allowance()
        steps = len(self.once.logits) if split is None else split.step + 1
        text = f"error {off:.3g} of the row's largest over {steps} steps, allowed {allowed:.3g}"
        return Finding("logits", off <= allowed, text, amplified=off > allowed and self._logits_amplified(off))

    def _floats(self, name: str, runs: list[dict[str, Leaf] | None]) -> Finding:
        once, again, shaken, patched = runs
        assert once is not None
        assert patched is not None
        different = sorted(path for path in once.keys() ^ patched.keys() if _matters(once.get(path) or patched[path]))
        if different:
            return Finding(name, False, f"{different[0]} is {'gone' if different[0] in once else 'new'}")
        floats = [path for path, leaf in once.items() if leaf.is_tensor and _floating(leaf)]
        noise = _errors(floats, once, again, first_split(self.once, self.again) is not None)
        split = self.shaken is not None and first_split(self.once, self.shaken) is not None
        growth = _errors(floats, once, shaken, split)
        typical = median(growth.values()) if growth else self._logits_error(self.shaken)
        worst, where, allowed_there, everywhere = 0.0, "", 0.0, True
        for path in floats:
            if patched[path].kind != once[path].kind or patched[path].value is None:
                return Finding(name, False, f"{path or 'the result'} is {patched[path].kind} instead of {once[path].kind}")
            off = error(patched[path].value, once[path].value)
            grown = max(growth.get(path, 0.0), typical)
            allowed = allowance(once[path].value.dtype, noise.get(path, 0.0), grown)
            everywhere = everywhere and (off <= allowed or amplified(off, grown))
            if off / allowed >= worst:
                worst, where, allowed_there = off / allowed, path, allowed
        error_there = f"{worst * allowed_there:.3g} of its row's largest at {where or 'the result'}"
        text = f"{counted(len(floats), 'tensor')}; the largest error is {error_there}"
        if worst > 1.0:
            return Finding(name, False, f"{text}, allowed {allowed_there:.3g}", amplified=everywhere)
        if not floats:
            return Finding(name, True, "no float tensors")
        wrong = [path for path, leaf in once.items() if not (leaf.is_tensor and _floating(leaf)) and not _alike(leaf, patched[path])]
        if wrong:
            return Finding(name, False, f"{wrong[0]} differs")
        return Finding(name, True, f"{text}, allowed {allowed_there:.3g}")


def first_split(once: Evidence, other: Evidence) -> Split | None:
    """Where two runs of a generating driver call first differ in a token that the logits of a step decided; None if nowhere."""
    for path, leaf in once.result.items():
        twin = other.result.get(path)
        if not _is_sequence(leaf) or twin is None or not _is_sequence(twin):
            continue
        want, got = _rows(leaf), _rows(twin)
        width = min(want.shape[-1], got.shape[-1])
        if want.shape[0] != got.shape[0]:
            continue
        wrong = want[:, :width] != got[:, :width]
        if not bool(wrong.any()):
            continue
        column = int(wrong.any(0).nonzero()[0])
        row = int(wrong[:, column].nonzero()[0])
        step = column - (want.shape[-1] - once.root_calls)
        decided = 0 <= step < min(len(once.logits), len(other.logits))
        if decided and once.logits[step].shape == other.logits[step].shape and once.logits[step].shape[0] == want.shape[0]:
            return Split(path, row, column, step)
    return None


def _errors(paths: list[str], once: dict[str, Leaf], other: dict[str, Leaf] | None, split: bool) -> dict[str, float]:
    """Errors of another unpatched run by path; nothing if it generated other tokens, since then it computed something else."""
    if other is None or split:
        return {}
    return {path: error(other[path].value, once[path].value) for path in paths if path in other and other[path].value is not None}


def _rows(leaf: Leaf) -> torch.Tensor:
    value: torch.Tensor = leaf.value
    return value.reshape(-1, value.shape[-1])


def _is_sequence(leaf: Leaf) -> bool:
    return leaf.is_tensor and leaf.value.dtype in (torch.int64, torch.int32) and leaf.value.dim() in (1, 2) and leaf.value.numel() > 0


def _floating(leaf: Leaf) -> bool:
    return bool(leaf.value.is_floating_point() or leaf.value.is_complex())


def _matters(leaf: Leaf) -> bool:
    return leaf.is_tensor or leaf.value is not None


def _alike(one: Leaf, two: Leaf) -> bool:
    """Equality of leaves that are no float tensors; Python floats up to single precision's rounding."""
    if one.kind != two.kind:
        return False
    if one.is_tensor and two.is_tensor:
        return torch.equal(one.value, two.value)
    if isinstance(one.value, float) and isinstance(two.value, float):
        return one.value == two.value or abs(one.value - two.value) <= 1e-3 * max(abs(one.value), abs(two.value))
    return bool(one.value == two.value)
