"""Driver calls as the live host would have recorded them, for tests that start from a model."""

from typing import Any

from torch import nn

from llm4llm.harness import values
from llm4llm.harness.ambient import Ambient, Randomness
from llm4llm.harness.workload import DriverEntry, Example, Kept, RootEntry, Step, Workload


def rooted(model: nn.Module, name: str = "r0") -> RootEntry:
    return RootEntry(name, model, type(model).__name__)


def recorded(model: nn.Module, method: str, *args: Any, **kwargs: Any) -> DriverEntry:
    """A driver entry for model.method(*args, **kwargs), called under the grad mode that holds now."""
    step = Step(values.snapshot(args), values.snapshot(kwargs), Ambient.now(), Randomness.now())
    kept = Kept(model, values.snapshot(values.kept_by(model)))
    return DriverEntry("d0", rooted(model), method, "", count=1, wall_ms=[1.0], examples=[Example([step], [kept], 0)])


def workload_of(*drivers: DriverEntry) -> Workload:
    """A workload of these drivers; drivers of one model share its root."""
    roots: dict[int, RootEntry] = {}
    for index, driver in enumerate(drivers):
        driver.root = roots.setdefault(id(driver.root.module), driver.root)
        driver.id = f"d{index}"
    for index, root in enumerate(roots.values()):
        root.id = f"r{index}"
    return Workload(roots=list(roots.values()), drivers=list(drivers))
