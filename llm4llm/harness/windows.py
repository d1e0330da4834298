"""Look closely at the first driver-level entries of a replay (one prefill, a few decode steps) and leave the rest alone."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from torch import nn

from llm4llm.harness.phases import Phase
from llm4llm.harness.spans import Entry, EntryKey

T = TypeVar("T")
Chosen = Mapping[EntryKey, int]  # how many occurrences of an entry are windows, from the first one on

MAX_WINDOWS = 24


class Enough(BaseException):
    """Ends a replay whose last window is over; nobody but the profile may catch it."""


def choose(entries: Mapping[EntryKey, Entry], most: int) -> dict[EntryKey, int]:
    """The first `most` occurrences of every decode entry and the first of the others."""
    most = most if len(entries) * most <= MAX_WINDOWS else 1
    return {(path, phase): min(most, entry.calls) if phase == "decode" else 1 for (path, phase), entry in entries.items()}


class Windows(Generic[T]):
    """A watch that collects `found` by family per window; `seen` holds one dict per window, by entry. Raises Enough after the last one."""

    def __init__(self, chosen: Chosen) -> None:
        self.found: dict[int, T] = {}
        self.seen: dict[EntryKey, list[dict[int, T]]] = {}
        self._left = dict(chosen)
        self._open = False
        self._busy = False
        self._thread = threading.get_ident()

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
        if self._busy or not self._left.get((path, phase), 0):
            busy, self._busy = self._busy, True
            try:
                return original(*args, **kwargs)
            finally:
                self._busy = busy
        self._left[path, phase] -= 1
        self.found, self._open = {}, True
        try:
            result = self.window(lambda: self.inside(path, original, args, kwargs))
            self.seen.setdefault((path, phase), []).append(self.found)
        finally:
            self._open = False
        # in another thread nobody waits for this exception, and somebody may wait for the thread's work
        if not any(self._left.values()) and threading.get_ident() == self._thread:
            raise Enough
        return result
