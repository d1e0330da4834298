"""Put a bundle's patches on the models that a script enters, at the first call into each."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from llm4llm.harness.recording import IDLE, INSIDE, WAITING, Recorder, Target
from llm4llm.harness.workload import FORWARD
from llm4llm.runtime.loader import Bundle, Refused

MAX_CALLS = 4096  # driver calls whose durations are kept
MAX_MISFITS = 8


class Applier:
    """Meets models and remembers what became of each. `applied` maps models to handles of the bundle's own runtime."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._met: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.applied: list[tuple[str, Any]] = []  # class name of the model, handle
        self.misfits: list[str] = []

    def meet(self, model: nn.Module) -> None:
        """Apply the bundle if it is for this model; a reason is kept if not. Never raises."""
        if model in self._met:
            return
        self._met.add(model)
        try:
            misfit = self._bundle.misfit(model)
            if misfit is None:
                self.applied.append((type(model).__name__, self._bundle.apply(model)))
                return
        except Refused as refused:
            misfit = refused.text
        except Exception as error:
            misfit = f"{type(model).__name__}: a patch could not be prepared ({type(error).__name__}: {error})"
        if misfit not in self.misfits and len(self.misfits) < MAX_MISFITS:
            self.misfits.append(misfit)

    def sites(self) -> list[dict[str, Any]]:
        """Counters of every patched module."""
        return [{"model": name, **site} for name, handle in self.applied for site in handle.status()["sites"]]

    def enable(self) -> None:
        for _, handle in self.applied:
            handle.enable()

    def disable(self) -> None:
        for _, handle in self.applied:
            handle.disable()

    def reason(self) -> str | None:
        """None if the bundle was applied to something, else why not, in one sentence."""
        if self.applied:
            return None
        return "; ".join(self.misfits) if self.misfits else "the script called no model"


class Lookout:
    """Has what an Interception asks of a Recorder: meets models and takes the time of driver calls, and copies nothing."""

    def __init__(self, applier: Applier) -> None:
        self.level = IDLE
        self.owner = 0
        self.calls: list[dict[str, Any]] = []  # {"model", "method", "wall_ms"}
        self._applier = applier
        self._lock = threading.Lock()

    def forward(self, module: nn.Module, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._watched(module, FORWARD, INSIDE, lambda: target(module, *args, **kwargs))[0]

    def method(
        self, module: nn.Module, name: str, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool | None]:
        return self._watched(module, name, WAITING, lambda: target(module, *args, **kwargs))

    def entered(self) -> None:
        """The watched method calls its first module now."""
        if self.owner == threading.get_ident():
            self.level = INSIDE

    def note(self, code: str, text: str) -> None:
        """Nothing here is stored."""

    def _watched(self, module: nn.Module, name: str, level: int, run: Callable[[], Any]) -> tuple[Any, bool | None]:
        if not self._lock.acquire(blocking=False):
            return run(), None
        try:
            self.level, self.owner = INSIDE, threading.get_ident()
            self._applier.meet(module)
            self.level = level
            start = time.perf_counter()
            result = run()
            called = self.level == INSIDE
            if called and len(self.calls) < MAX_CALLS:
                self.calls.append({"model": type(module).__name__, "method": name, "wall_ms": (time.perf_counter() - start) * 1e3})
            return result, called
        finally:
            self.level = IDLE
            self._lock.release()


class PatchingRecorder(Recorder):
    """Records driver calls as the live host does, with the bundle applied before the first one of each model."""

    def __init__(self, applier: Applier) -> None:
        super().__init__(lambda event: None)
        self._applier = applier

    def forward(self, module: nn.Module, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._meet(module)
        return super().forward(module, target, args, kwargs)

    def method(
        self, module: nn.Module, name: str, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool | None]:
        self._meet(module)
        return super().method(module, name, target, args, kwargs)

    def _meet(self, module: nn.Module) -> None:
        level = self.level
        self.level = INSIDE  # `prepare` may call modules; those are no driver calls
        try:
            self._applier.meet(module)
        finally:
            self.level = level
