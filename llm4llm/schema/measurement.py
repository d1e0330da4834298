"""Samples of a time, with how they were taken."""

from statistics import median

from llm4llm.schema.base import Frozen, Prose, Samples


class Measurement(Frozen):
    """Latency samples in milliseconds, in the order in which they were taken."""

    samples_ms: Samples
    method: Prose
    warmup: int = 0

    @property
    def median_ms(self) -> float:
        return median(self.samples_ms)


class Paired(Frozen):
    """Samples of two variants taken alternately in ABBA order: pair i is (baseline[i], patched[i])."""

    baseline_ms: Samples
    patched_ms: Samples
    method: Prose
    ci95: tuple[float, float] | None = None  # of the median of baseline/patched; None if there are too few pairs
    speedup: float | None = None  # median of baseline/patched
