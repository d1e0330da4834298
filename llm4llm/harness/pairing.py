"""Paired times of a recorded workload with applied patches off and on."""

import time
from typing import Any

from llm4llm.harness.applying import Applier
from llm4llm.harness.replay import settled_heap, timed
from llm4llm.harness.workload import DriverEntry, Workload

METHOD = (
    "driver calls replayed whole in the process that ran the script, each repetition with fresh inputs and random state, weighted by their "
    "number of calls in the script; both variants warmed up before, pairs in ABBA order"
)
LEAST_PAIRS = 3


class NothingToRepeat(Exception):
    """No driver call of the script can be replayed."""


def paired(workload: Workload, applier: Applier, most: int, limit_s: float) -> dict[str, Any]:
    """{"baseline_ms", "patched_ms", "method"}: pair i is (baseline[i], patched[i]), each one pass over the workload.

    At least LEAST_PAIRS pairs, then no more than fit into `limit_s` seconds. The patches are on afterwards.
    """
    drivers = workload.replayable()
    if not drivers:
        raise NothingToRepeat(
            workload.drivers[0].refusal.text if workload.drivers and workload.drivers[0].refusal else "nothing was recorded"
        )
    started = time.perf_counter()
    switches = {"baseline": applier.disable, "patched": applier.enable}
    samples: dict[str, list[float]] = {"baseline": [], "patched": []}
    for name in samples:  # warm-up
        switches[name]()
        _pass_ms(drivers)
    with settled_heap():
        for pair in range(most):
            spent = time.perf_counter() - started
            if pair >= LEAST_PAIRS and spent * (pair + 3) / (pair + 2) > limit_s:  # the warm-up took about two pairs' time
                break
            for name in ("baseline", "patched") if pair % 2 == 0 else ("patched", "baseline"):
                switches[name]()
                samples[name].append(_pass_ms(drivers))
    applier.enable()
    return {"baseline_ms": samples["baseline"], "patched_ms": samples["patched"], "method": METHOD}


def _pass_ms(drivers: list[DriverEntry]) -> float:
    return sum(max(1, driver.count) * timed(driver)[0] for driver in drivers)
