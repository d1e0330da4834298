"""Put patches on a live model, and take them off again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn


@dataclass(frozen=True)
class PatchSpec:
    """A candidate, its proven domain and the module paths that it goes to. Several specs may name one path (prefill and decode)."""

    name: str
    file: Path
    domain: dict[str, Any]
    paths: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    family: str | None = None  # checked against every site when given
    sha256: str | None = None  # checked against the file when given


class Handle:
    """Patches on one model."""

    @property
    def enabled(self) -> bool:
        raise NotImplementedError

    def enable(self) -> None:
        """Install the prepared dispatchers again; microseconds, nothing is prepared anew."""
        raise NotImplementedError

    def disable(self) -> None:
        """Uninstall: every module's dict is exactly as before `apply`; prepared state is kept for `enable`."""
        raise NotImplementedError

    def remove(self) -> None:
        """Uninstall and drop all prepared state. Idempotent."""
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """{"enabled", "sites": [{"patch", "path", "hits", "fallbacks", "fallback_reasons": {code: count}, "disabled": text|None}]}."""
        raise NotImplementedError

    def reset_counters(self) -> None:
        """Set hits and fallbacks of every site to zero."""
        raise NotImplementedError


def apply(model: nn.Module, patches: Sequence[PatchSpec]) -> Handle:
    """Verify every site, prepare all, then install. Raises Refused (or what a candidate's `prepare` raised) with the model untouched."""
    raise NotImplementedError
