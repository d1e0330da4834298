"""The in-model decision."""

from typing import Annotated, Literal

from pydantic import Field

from llm4llm.schema.base import Facts, Frozen, Name, Names, Paths, Sentence
from llm4llm.schema.measurement import Paired
from llm4llm.schema.profile import Phase
from llm4llm.schema.reason import Reason


class Patch(Frozen):
    """A candidate with the domain on which it was proven and the sites it goes to."""

    candidate: Name
    candidate_sha256: Name
    task: Name
    root: Name
    module_class: Name
    phase: Phase
    family: Name
    paths: Paths
    config: Facts
    proven_domain: Facts


class Site(Frozen):
    """Counters of one patched module."""

    path: Name
    hits: int
    fallbacks: int
    fallback_reasons: Annotated[dict[Name, int], Field(max_length=100)] = {}


class Check(Frozen):
    """One comparison of the patched model with the unpatched one."""

    name: Name
    passed: bool
    detail: Sentence
    excused: bool = False  # passed in spite of a difference, because rounding explains it


Checks = Annotated[tuple[Check, ...], Field(max_length=100)]
Sites = Annotated[dict[Name, Annotated[tuple[Site, ...], Field(max_length=200_000)]], Field(max_length=1_000)]


class Trialled(Frozen):
    """One or several patches tried on the live instance."""

    patches: Names  # candidate ids
    checks: Checks
    sites: Sites  # candidate id → its sites, over one pass of the workload
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
