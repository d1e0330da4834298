"""Watch every module call below a root by an instance-level `forward`, and put everything back exactly.

Never hooks: they lose keyword arguments, switch fused paths off and fail on scripted modules. A wrapper written into the instance's own
dict also sees `child.forward(x)`, which bypasses hooks, and keeps an instance-level forward that was there before (accelerate's partial,
the user's own monkeypatch).
"""

import functools
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from llm4llm.harness.phases import Phase, PhaseTracker
from llm4llm.harness.workload import DriverEntry, RootEntry


class Watch(Protocol):
    """What is called instead of a module's forward; it must call original(*args, **kwargs) once and return its result."""

    def __call__(
        self, path: str, module: nn.Module, phase: Phase, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...


class Refusal(NamedTuple):
    """Why a module can't be watched or replaced."""

    code: str
    text: str


class _Running(threading.local):
    phase: Phase | None = None


_without_root_forward: "weakref.WeakSet[DriverEntry]" = weakref.WeakSet()


def refusal(module: nn.Module) -> Refusal | None:
    """Why this module and everything below it must be left alone; None if it can be watched."""
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        return Refusal("scripted", f"{name} is TorchScript: its calls run outside Python, so no forward can be put in front of it")
    if type(module).__module__.startswith("torch._dynamo") or getattr(module, "_compiled_call_impl", None) is not None:
        return Refusal("compiled", f"{name} is compiled by torch.compile: run the script without it, so that its modules are visible")
    if isinstance(module, nn.DataParallel):
        return Refusal("replicated", f"{name} copies its modules for every call: use one device, or one process per device")
    return None


def _hides_children(module: nn.Module) -> Refusal | None:
    """A module that can be watched itself, but whose children run inside compiled code."""
    if hasattr(module.forward, "_torchdynamo_orig_callable"):
        return Refusal("compiled", f"the forward of {type(module).__name__} is compiled: modules inside are not visible")
    return None


class Instrument:
    """The wrappers on one root. `refusals` names by path what was left alone, subtrees by their topmost path."""

    def __init__(self, root: nn.Module, watch: Watch, paths: Collection[str] | None) -> None:
        self.refusals: dict[str, Refusal] = {}
        self.paths: list[str] = []
        self._root, self._watch = root, watch
        self._wanted = None if paths is None else set(paths)
        self._running = _Running()
        self._tracker = PhaseTracker("forward")
        self._driver: DriverEntry | None = None
        self._undo: list[tuple[nn.Module, Any]] = []

    def begin(self, driver: DriverEntry) -> None:
        """A replay of this driver call starts now: phases are counted from here."""
        self.end()
        self._driver = driver
        call = driver.example
        self._tracker = PhaseTracker.for_call(self._root, driver.method, call.args if call else (), call.kwargs if call else {})
        self._tracker.root_runs = driver not in _without_root_forward

    def end(self) -> None:
        """The replay is over; remember whether the root's own forward ran in it."""
        driver, self._driver = self._driver, None
        if driver is not None and self._tracker.generates and not self._tracker.root_calls and self._tracker.outside_calls:
            _without_root_forward.add(driver)

    @property
    def phase(self) -> Phase | None:
        """The phase that runs in this thread now; None outside any watched call."""
        return self._running.phase

    @contextmanager
    def pretending(self, phase: Phase) -> Iterator[None]:
        """Calls in this thread count as running in `phase`, as if inside a root forward."""
        outer, self._running.phase = self._running.phase, phase
        try:
            yield
        finally:
            self._running.phase = outer

    def install(self) -> None:
        hidden: list[str] = []
        for path, module in self._root.named_modules():
            if any(path.startswith(prefix) for prefix in hidden):
                continue
            reason = refusal(module)
            inside = reason or _hides_children(module)
            if inside is not None:
                self.refusals[path] = inside
                hidden.append(f"{path}." if path else "")
            if reason is None and (path == "" or self._wanted is None or path in self._wanted):
                self._wrap(path, module)

    def remove(self) -> None:
        while self._undo:
            module, before = self._undo.pop()
            if before is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = before

    def _wrap(self, path: str, module: nn.Module) -> None:
        original = module.forward
        watched = self._wanted is None or path in self._wanted
        wrapper = self._root_forward(module, original, watched) if path == "" else self._inner_forward(path, module, original)
        # signature and docstring must stay readable: libraries inspect a model's forward to decide what to pass
        functools.update_wrapper(wrapper, original)
        self._undo.append((module, vars(module).get("forward")))
        vars(module)["forward"] = wrapper  # an existing key keeps its place in the dict
        if watched:
            self.paths.append(path)

    def _root_forward(self, module: nn.Module, original: Callable[..., Any], watched: bool) -> Callable[..., Any]:
        watch, running, compiling = self._watch, self._running, torch.compiler.is_compiling

        def forward(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(*args, **kwargs)
            outer = running.phase
            phase = running.phase = self._tracker.root_phase(args, kwargs)
            try:
                return watch("", module, phase, original, args, kwargs) if watched else original(*args, **kwargs)
            finally:
                running.phase = outer

        return forward

    def _inner_forward(self, path: str, module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
        watch, running, compiling = self._watch, self._running, torch.compiler.is_compiling

        def forward(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(*args, **kwargs)
            phase = running.phase
            if phase is not None:
                return watch(path, module, phase, original, args, kwargs)
            phase = running.phase = self._tracker.outside_phase(module)
            try:
                return watch(path, module, phase, original, args, kwargs)
            finally:
                running.phase = None

        return forward


@contextmanager
def instrumented(
    root: RootEntry, watch: Watch, paths: Collection[str] | None = None, driver: DriverEntry | None = None
) -> Iterator[Instrument]:
    """Every module below `root` (or those at `paths`) calls `watch` instead of its forward; undone on exit, also after an exception.

    Phases are those of `driver`; replay it once inside, or call `begin(driver)` on the yielded Instrument before each replay.
    Threads have phases of their own. Calls that torch.compile traces go straight to the original.
    """
    instrument = Instrument(root.module, watch, paths)
    try:
        instrument.install()
        if driver is not None:
            instrument.begin(driver)
        yield instrument
    finally:
        instrument.remove()
        instrument.end()
