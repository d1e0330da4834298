"""What a judged candidate promises for the whole workload, before anybody has tried it in place."""

STEP = 1.003  # incremental gain that a patch must add in place: small true gains add up, noise does not


def promise(share: float, speedup: float | None) -> float:
    """Share of the workload's time that goes away if the speedup alone holds in place (Amdahl); 0 if there was nothing to measure."""
    return share * (1.0 - 1.0 / speedup) if speedup else 0.0


def within_reach(share: float, speedup: float | None) -> bool:
    """Whether the workload as a whole could become faster by STEP. True where no speedup was measured."""
    return speedup is None or 1.0 / (1.0 - min(promise(share, speedup), 0.999)) > STEP
