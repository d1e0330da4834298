"""Patches as the pipeline would hand them to a trial."""

import hashlib
from pathlib import Path
from typing import Any

from torch import nn

from llm4llm.harness.families import families
from llm4llm.harness.instrument import instrumented
from llm4llm.harness.replay import replay
from llm4llm.harness.workload import DriverEntry
from llm4llm.runtime.domain import merge, observe


def patch(driver: DriverEntry, module_class: str, phase: str, source: str, folder: Path) -> dict[str, Any]:
    """A patch for those of the first family of this class that run in the phase, proven on every call in it."""
    family = next(one for one in families(driver.root) if one.module_class == module_class)
    seen: list[dict[str, Any]] = []
    called: set[str] = set()

    def watch(path: str, module: nn.Module, now: str, original: Any, args: Any, kwargs: Any) -> Any:
        if path in family.paths and now == phase:
            seen.append(observe(module, args, kwargs))
            called.add(path)
        return original(*args, **kwargs)

    with instrumented(driver.root, watch, driver=driver):
        replay(driver)
    assert seen, f"{module_class} never ran in {phase}"
    content = source.encode()
    sha256 = hashlib.sha256(content).hexdigest()
    file = folder / f"{sha256}.py"
    file.write_bytes(content)
    return {
        "candidate": f"cand_{sha256[:8]}",
        "candidate_sha256": sha256,
        "task": "task_1",
        "root": driver.root.id,
        "module_class": module_class,
        "phase": phase,
        "family": family.signature,
        "paths": [path for path in family.paths if path in called],
        "config": {},
        "proven_domain": merge(seen),
        "file": str(file),
    }
