"""From what the live host measured to one decision with its reason."""

from itertools import accumulate

from pydantic import ConfigDict, ValidationError

from llm4llm.kit import counted
from llm4llm.kit.statistics import BadSamples, bootstrap_ratio
from llm4llm.schema.acceptance import Check, Checks, Patch, Site, Sites, Trialled
from llm4llm.schema.base import Frozen, Prose, Samples
from llm4llm.schema.measurement import Paired
from llm4llm.schema.reason import Reason
from llm4llm.stages.tools import Failed, Ok

_MOST_CHARACTERS = 256 << 10  # of the sites of one trial
METHOD = "whole driver calls replayed on the live instance, ABBA order, fresh inputs and random state for every repetition"


def dropped(patches: tuple[Patch, ...], code: str, text: str) -> Trialled:
    """A decision that was taken without a measurement."""
    names = tuple(patch.candidate for patch in patches)
    return Trialled(patches=names, checks=(), sites={}, timing=None, decision="drop", reason=Reason(code=code, text=text))


class _Told(Frozen):
    """A trial as the process that made it tells it."""

    model_config = ConfigDict(extra="ignore")

    checks: Checks
    sites: Sites
    baseline_ms: Samples = ()
    patched_ms: Samples = ()
    method: Prose | None = None
    restored: bool = False


def _folded(sites: dict[str, tuple[Site, ...]], patches: tuple[Patch, ...]) -> dict[str, tuple[Site, ...]]:
    """The sites of the patches that were asked about; what is more than anybody reads is added up in a last one."""
    left, kept = _MOST_CHARACTERS, {}
    for patch in patches:
        found = sites.get(patch.candidate, ())
        sizes = accumulate(len(site.path) + 64 + sum(len(why) + 16 for why in site.fallback_reasons) for site in found)
        fitting = sum(1 for size in sizes if size <= left)
        left -= sum(len(site.path) + 64 for site in found[:fitting])
        rest = found[fitting:]
        kept[patch.candidate] = found[:fitting] + ((_sum(rest),) if rest else ())
    return kept


def _sum(sites: tuple[Site, ...]) -> Site:
    hits, fallbacks = sum(site.hits for site in sites), sum(site.fallbacks for site in sites)
    return Site(path=f"and {len(sites)} more", hits=hits, fallbacks=fallbacks)


def _paired(told: _Told) -> Paired | None:
    """The samples with their interval; None if there is no usable pair."""
    baseline, patched = told.baseline_ms, told.patched_ms
    try:
        speedup, interval = bootstrap_ratio(baseline, patched)
    except BadSamples:
        return None
    return Paired(
        baseline_ms=baseline,
        patched_ms=patched,
        method=told.method or METHOD,
        ci95=interval if len(baseline) > 2 else None,
        speedup=speedup,
    )


def decided(patches: tuple[Patch, ...], answer: Ok | Failed, threshold: float) -> Trialled:
    """The trial of `patches` with its decision.

    Kept only if all checks passed, every patch ran and the low end of the gain's interval is above `threshold`.
    """
    if isinstance(answer, Failed):
        return dropped(patches, f"trial_{answer.kind}", f"the trial on the live model did not end: {answer.reason}")
    try:
        told = _Told.model_validate(answer.result)
    except ValidationError as error:
        return dropped(patches, "trial_unreadable", f"what was told of the trial can't be read ({error.errors()[0]['msg']})")
    checks, sites, timing = list(told.checks), _folded(told.sites, patches), _paired(told)
    if not told.restored and all(check.name != "restored" for check in checks):
        checks.append(Check(name="restored", passed=False, detail="the model was not as before once the patch was removed"))
    reason = _objection(patches, checks, sites) or _gain_objection(timing, threshold)
    names = tuple(patch.candidate for patch in patches)
    if reason is not None:
        return Trialled(patches=names, checks=tuple(checks), sites=sites, timing=timing, decision="drop", reason=reason)
    assert timing is not None
    kept = gain(timing, threshold)
    return Trialled(patches=names, checks=tuple(checks), sites=sites, timing=timing, decision="keep", reason=kept)


def gain(timing: Paired, threshold: float) -> Reason:
    """Why something was kept whose interval lies above the threshold."""
    assert timing.ci95 is not None
    text = f"{timing.speedup:.3f}x end to end (95 % interval {timing.ci95[0]:.3f} to {timing.ci95[1]:.3f}), above {threshold:.3f}"
    return Reason(code="gain", text=text)


def idle(patches: tuple[Patch, ...], sites: dict[str, tuple[Site, ...]]) -> list[Patch]:
    """Patches whose code never ran in a pass over the workload."""
    return [patch for patch in patches if not sum(site.hits for site in sites.get(patch.candidate, ()))]


def _objection(patches: tuple[Patch, ...], checks: list[Check], sites: dict[str, tuple[Site, ...]]) -> Reason | None:
    failed = [check for check in checks if not check.passed]
    if failed:
        return Reason(code=f"check_{failed[0].name}", text=f"{failed[0].name}: {failed[0].detail}")
    never = idle(patches, sites)
    if never:
        fallbacks: dict[str, int] = {}
        for site in sites.get(never[0].candidate, ()):
            for why, count in site.fallback_reasons.items():
                fallbacks[why] = fallbacks.get(why, 0) + count
        why = ", ".join(f"{counted(count, 'call')}: {name}" for name, count in fallbacks.items()) or "its modules were not called"
        return Reason(code="never_ran", text=f"{never[0].candidate} did not run once in a pass over the workload ({why})")
    return None


def _gain_objection(timing: Paired | None, threshold: float) -> Reason | None:
    if timing is None or timing.ci95 is None or timing.speedup is None:
        return Reason(
            code="no_timing", text="too few pairs were measured within the time limit to tell a gain; give the job a larger --budget"
        )
    low, high = timing.ci95
    interval = f"{timing.speedup:.3f}x end to end (95 % interval {low:.3f} to {high:.3f})"
    if low > threshold:
        return None
    if high <= 1.0:
        return Reason(code="slower", text=f"{interval}: slower in place")
    if high <= threshold:
        return Reason(code="gain_too_small", text=f"{interval}: not above {threshold:.3f}")
    return Reason(code="no_decision", text=f"{interval}: the interval straddles {threshold:.3f}; a larger --budget gives more pairs")
