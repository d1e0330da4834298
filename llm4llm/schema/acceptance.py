"""The in-model decision."""

from typing import Any, Literal

from llm4llm.schema.base import Frozen
from llm4llm.schema.measurement import Paired
from llm4llm.schema.profile import Phase
from llm4llm.schema.reason import Reason


class Patch(Frozen):
    """A candidate with the domain on which it was proven and the sites it goes to."""

    candidate: str
    candidate_sha256: str
    task: str
    root: str
    module_class: str
    phase: Phase
    family: str
    paths: tuple[str, ...]
    config: dict[str, Any]
    proven_domain: dict[str, Any]


class Site(Frozen):
    """Counters of one patched module."""

    path: str
    hits: int
    fallbacks: int
    fallback_reasons: dict[str, int] = {}


class Check(Frozen):
    """One comparison of the patched model with the unpatched one."""

    name: str
    passed: bool
    detail: str
    excused: bool = False  # passed in spite of a difference, because rounding explains it


class Trialled(Frozen):
    """One or several patches tried on the live instance."""

    patches: tuple[str, ...]  # candidate ids
    checks: tuple[Check, ...]
    sites: dict[str, tuple[Site, ...]]  # candidate id → its sites, over one pass of the workload
    timing: Paired | None
    decision: Literal["keep", "drop"]
    reason: Reason


class Acceptance(Frozen):
    """Every trial, the set that was kept and its confirmation in a fresh process."""

    trials: tuple[Trialled, ...]
    kept: tuple[Patch, ...]
    together: Trialled | None
    fresh_process: Trialled | None
    decision: Literal["accepted", "nothing_accepted"]
    reason: Reason
