"""Intervals for paired samples."""

from collections.abc import Sequence

import numpy as np

_MOST_PAIRS = 10_000  # resampling takes memory for thousands of copies, and samples may come from a process that is not trusted


class BadSamples(ValueError):
    """Samples that no interval can be computed from."""


class EmptySamples(BadSamples):
    """There are no pairs."""


class UnequalSamples(BadSamples):
    """The two variants have different numbers of samples."""


def bootstrap_ratio(
    baseline: Sequence[float], patched: Sequence[float], rng_seed: int = 0, resamples: int = 4000
) -> tuple[float, tuple[float, float]]:
    """Median of baseline[i] / patched[i] and its 95 % interval; above 1 the patched variant is faster.

    Paired bootstrap, percentile method: pairs are drawn together with replacement, so that drift which hits both halves of a pair cancels
    (B. Efron, R. J. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). The interval of one pair is that pair's ratio.
    Raises EmptySamples, UnequalSamples, or BadSamples for values that are not finite and positive.
    """
    if len(baseline) != len(patched):
        raise UnequalSamples(f"{len(baseline)} baseline samples against {len(patched)} patched ones")
    if not len(baseline):
        raise EmptySamples("no pairs were measured")
    if len(baseline) > _MOST_PAIRS:
        raise BadSamples(f"there are more than {_MOST_PAIRS} pairs")
    try:
        above, below = np.asarray(baseline, dtype=np.float64), np.asarray(patched, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadSamples("every sample must be a number") from error
    if not (np.isfinite(above).all() and np.isfinite(below).all() and (above > 0).all() and (below > 0).all()):
        raise BadSamples("every sample must be a finite, positive time")
    ratios = above / below
    drawn = np.random.default_rng(rng_seed).integers(0, len(ratios), size=(resamples, len(ratios)))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), (2.5, 97.5))
    return float(np.median(ratios)), (float(low), float(high))
