"""Look closely at a few driver-level entries of a replay (the first prefill, some decode steps) and let the others just run."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from torch import nn

from llm4llm.harness.phases import Phase
from llm4llm.harness.spans import Entry, EntryKey

T = TypeVar("T")
Chosen = Mapping[EntryKey, frozenset[int]]  # which occurrences of an entry are windows

MAX_WINDOWS = 24


def choose(entries: Mapping[EntryKey, Entry], most: int) -> dict[EntryKey, frozenset[int]]:
    """Occurrences to look at: for decode up to `most`, spread over the driver call (its cost grows with the cache), else the first."""
    chosen: dict[EntryKey, frozenset[int]] = {}
    most = most if len(entries) * most <= MAX_WINDOWS else 1
    for (path, phase), entry in entries.items():
        last = entry.calls - 1
        spread = {round(last * part / max(1, most - 1)) for part in range(most)} if phase == "decode" and most > 1 else {0}
        chosen[path, phase] = frozenset(spread)
    return chosen


class Windows(Generic[T]):
    """A watch; per window (entry, occurrence) it collects `found` by family. `seen` holds one dict per window that was entered."""

    def __init__(self, chosen: Chosen) -> None:
        self.found: dict[int, T] = {}
        self.seen: dict[EntryKey, list[dict[int, T]]] = {}
        self._chosen = chosen
        self._occurrences: dict[EntryKey, int] = {}
        self._open = False
        self._busy = False

    def window(self, run: Callable[[], Any]) -> Any:
        """Run the entry with whatever measures it; afterwards `found` is complete."""
        raise NotImplementedError

    def inside(self, path: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One watched call within a window."""
        raise NotImplementedError

    def __call__(
        self, path: str, module: nn.Module, phase: Phase, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._open:
            return self.inside(path, original, args, kwargs)
        if self._busy:
            return original(*args, **kwargs)
        occurrence = self._occurrences.get((path, phase), 0)
        self._occurrences[path, phase] = occurrence + 1
        self._busy = True
        try:
            if occurrence not in self._chosen.get((path, phase), ()):
                return original(*args, **kwargs)
            return self._watched(path, phase, lambda: self.inside(path, original, args, kwargs))
        finally:
            self._busy = False

    def _watched(self, path: str, phase: Phase, run: Callable[[], Any]) -> Any:
        self.found, self._open = {}, True
        try:
            result = self.window(run)
            self.seen.setdefault((path, phase), []).append(self.found)
            return result
        finally:
            self._open = False
