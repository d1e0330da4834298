"""Record outermost calls into models while a script runs: copies of their inputs before, their duration after.

Nothing in here may reach the script: a fault of ours is noted and the call goes on as if nobody watched. Outputs are never kept.
"""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from llm4llm.harness import refusals, values
from llm4llm.harness.ambient import Ambient
from llm4llm.harness.chains import Call, Chain, Links
from llm4llm.harness.signatures import call_signature, loop_signature
from llm4llm.harness.storing import Budget, Stored, TooLarge, stored
from llm4llm.harness.workload import FORWARD, LOOP, MAX_WALL_SAMPLES, DriverEntry, Example, Reason, RootEntry, Step, Workload
from llm4llm.runtime.signature import root_fingerprint

IDLE, WAITING, INSIDE = 0, 1, 2  # no recorded call; in a method that has not called a module yet; in a recorded call
MAX_ROOTS = 64
MAX_EXAMPLES = 2
MAX_KINDS = 1_000  # driver calls that are told apart
_OTHERS = "others"
_HEADS_STORED = 4  # first forwards of one signature whose inputs are stored in case a loop follows
_LOOPS_STORED = 8  # the same, once a loop has begun with that signature

Emit = Callable[[dict[str, Any]], None]
Target = Callable[..., Any]


_T = TypeVar("_T")


@dataclass(frozen=True)
class _Name:
    """What a driver call is known by, with the place of its first call among all calls."""

    root: RootEntry
    method: str
    signature: str
    refusal: Reason | None
    order: int


@dataclass
class _Method:
    """A method call between its beginning and its end."""

    name: _Name
    stored: Stored | None
    failure: Reason | None
    still_training: bool = False  # when the first forward below began: some libraries call eval() only inside the method


class Recorder:
    """Collects a Workload. `level` is read by the interception on every module call; INSIDE means: step aside."""

    def __init__(self, emit: Emit) -> None:
        self.workload = Workload()
        self.level = IDLE
        self.owner = 0  # thread of the recorded call
        self._method: _Method | None = None
        self._emit = emit
        self._lock = threading.Lock()
        self._closed = False
        self._budget = Budget.of_this_machine()
        self._roots: dict[int, RootEntry] = {}
        self._offloaded: dict[int, bool] = {}
        self._chains: dict[int, Chain] = {}
        self._drivers: dict[tuple[int, str, str, str], DriverEntry] = {}
        self._orders: dict[DriverEntry, int] = {}
        self._heads: dict[tuple[int, str, bool], int] = {}
        self._count = 0

    def forward(self, module: nn.Module, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an outermost forward, `target(module, *args, **kwargs)`, and record it."""
        if not self._lock.acquire(blocking=False):
            return target(module, *args, **kwargs)
        try:
            self.level, self.owner = INSIDE, threading.get_ident()
            begun = self._guarded(module, lambda: self._begin_forward(module, args, kwargs))
            start = time.perf_counter()
            try:
                result = target(module, *args, **kwargs)
            except BaseException as error:
                self._raised(module, FORWARD, error)
                raise
            wall_ms = (time.perf_counter() - start) * 1e3
            if begun is not None:
                chain, call = begun
                self._guarded(module, lambda: chain.after(call, result, wall_ms))
            return result
        finally:
            self._leave()

    def method(
        self, module: nn.Module, name: str, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool | None]:
        """(result, whether a module was called below) of an outermost method call.

        The second is None where the call can't be watched as one; then the forwards in it are recorded on their own.
        """
        if not self._lock.acquire(blocking=False):
            return target(module, *args, **kwargs), None
        try:
            self.level, self.owner = INSIDE, threading.get_ident()
            begun = self._guarded(module, lambda: self._begin_method(module, name, args, kwargs))
            if begun is not None:
                self._method, self.level = begun, WAITING
                start = time.perf_counter()
                try:
                    result = target(module, *args, **kwargs)
                except BaseException as error:
                    self._raised(module, name, error)
                    raise
                wall_ms, called = (time.perf_counter() - start) * 1e3, self.level == INSIDE
                self.level = INSIDE
                method = begun
                self._guarded(module, lambda: self._end_method(method, wall_ms, called=called))
                return result, called
        finally:
            self._leave()
        return target(module, *args, **kwargs), None

    def entered(self) -> None:
        """The watched method calls its first module now; from here on everything belongs to it."""
        if self.level == WAITING and self.owner == threading.get_ident() and self._method is not None:
            self._method.still_training = self._method.name.root.module.training
            self.level = INSIDE

    def note(self, code: str, text: str) -> None:
        """Remember, once, what could not be recorded."""
        if self.workload.note(code, text):
            self._tell({"note": self.workload.notes[-1].to_json()})

    def abandon(self) -> None:
        """Stop recording without a result (in a forked child)."""
        self._closed, self.level = True, INSIDE

    def close(self) -> Workload:
        """Stop recording; the workload with its ids."""
        self.abandon()
        for chain in sorted(self._chains.values(), key=lambda item: item.order):
            self._finish(id(chain.root.module))
        drivers = sorted(self._orders, key=self._orders.__getitem__)
        roots = list(dict.fromkeys(driver.root for driver in drivers))
        for index, root in enumerate(roots):
            root.id = f"r{index}"
            root.fingerprint = self._guarded(root.module, functools.partial(root_fingerprint, root.module)) or ""
        for index, driver in enumerate(drivers):
            driver.id = f"d{index}"
        self.workload.roots, self.workload.drivers = roots, drivers
        self._roots.clear()
        return self.workload

    def _tell(self, event: dict[str, Any]) -> None:
        # a parent that went away is no reason for the script to fail
        with contextlib.suppress(OSError):
            self._emit(event)

    def _leave(self) -> None:
        self.level = INSIDE if self._closed else IDLE
        self._lock.release()

    def _guarded(self, module: nn.Module, part: Callable[[], _T]) -> _T | None:
        try:
            return part()
        except Exception as error:
            self._chains.pop(id(module), None)
            self.note("recording_failed", f"a call of {type(module).__name__} was not recorded: {type(error).__name__}: {error}")
            return None

    def _raised(self, module: nn.Module, name: str, error: BaseException) -> None:
        if isinstance(error, Exception):
            text = f"{type(module).__name__}.{name} raised {type(error).__name__}; that call is not part of the workload"
        else:
            text = f"{type(module).__name__}.{name} was interrupted; that call is not part of the workload"
        self.note("call_not_finished", text)

    def _begin_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Chain, Call] | None:
        root = self._root(module)
        if root is None:
            return None
        signature = call_signature(args, kwargs, Ambient.now())
        refusal = refusals.of_root(module, offloaded=self._offloaded[id(module)])
        chain = self._chains.get(id(module))
        links = chain.links(args, kwargs) if chain is not None else Links({}, continues=False)
        if chain is None or not links.continues or chain.refusal != refusal:
            self._finish(id(module))
            chain = Chain(root, self._next(), refusal=refusal, stored=refusal is None and self._wanted(id(module), signature))
            self._chains[id(module)] = chain
            links = Links({}, continues=False)
        states = chain.before(args, kwargs)
        step, memo = None, links.memo
        if chain.stored:
            step, memo = self._store_step(chain, args, kwargs, links)
        return chain, Call(args, kwargs, signature, step, memo, states)

    def _store_step(self, chain: Chain, args: tuple[Any, ...], kwargs: dict[str, Any], links: Links) -> tuple[Step | None, dict[int, Any]]:
        previous = chain.steps[-1] if chain.steps else None
        try:
            taken = stored(chain.root.module, (args, kwargs), self._budget, memo=links.memo, previous=previous)
        except (values.NotReplayable, TooLarge) as error:
            chain.failure = refusals.too_large(error) if isinstance(error, TooLarge) else refusals.not_replayable(error)
            chain.stored = False
            chain.steps.clear()
            chain.kept.clear()
            self._budget.give_back(*chain.stored_bytes)
            return None, {}
        chain.kept = chain.kept or taken.kept
        chain.stored_bytes = (chain.stored_bytes[0] + taken.host_bytes, chain.stored_bytes[1] + taken.device_bytes)
        return taken.step, taken.memo

    def _finish(self, key: int) -> None:
        """Turn the pending forwards of a root into a driver call."""
        chain = self._chains.pop(key, None)
        if chain is None or not chain.signatures:
            return
        looped = len(chain.signatures) > 1
        head = (key, chain.signatures[0], looped)
        self._heads[head] = self._heads.get(head, 0) + 1
        name = _Name(
            chain.root,
            LOOP if looped else FORWARD,
            loop_signature(chain.signatures) if looped else chain.signatures[0],
            chain.refusal,
            chain.order,
        )
        self._record(name, chain.example(), sum(chain.wall_ms), chain.failure)

    def _wanted(self, key: int, signature: str) -> bool:
        """Whether to store a forward that may be the first of a loop."""
        loops, single = self._heads.get((key, signature, True), 0), self._heads.get((key, signature, False), 0)
        return loops < _LOOPS_STORED if loops else single < _HEADS_STORED

    def _begin_method(self, module: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Method | None:
        root = self._root(module)
        if root is None:
            return None
        signature = call_signature(args, kwargs, Ambient.now())
        refusal = refusals.of_root(module, offloaded=self._offloaded[id(module)])
        known = self._drivers.get((id(module), name, signature, ""))
        begun = _Method(_Name(root, name, signature, refusal, self._next()), None, None)
        if (refusal is None or refusal.code == refusals.TRAINING) and (known is None or len(known.examples) < MAX_EXAMPLES):
            try:
                begun.stored = stored(module, (args, kwargs), self._budget, memo={}, previous=None)
            except TooLarge as error:
                begun.failure = refusals.too_large(error)
            except values.NotReplayable as error:
                self.note("not_replayable", f"{type(module).__name__}.{name} is replayed forward by forward: {error}")
                return None
        return begun

    def _end_method(self, method: _Method, wall_ms: float, *, called: bool) -> None:
        module = method.name.root.module
        taken = method.stored
        if called:
            self._finish(id(module))
            name = method.name
            if name.refusal is not None and name.refusal.code == refusals.TRAINING and not method.still_training:
                name = dataclasses.replace(name, refusal=None)
            example = Example([taken.step], taken.kept, (taken.host_bytes, taken.device_bytes)) if taken is not None else None
            self._record(name, example, wall_ms, method.failure)
        elif taken is not None:
            self._budget.give_back(taken.host_bytes, taken.device_bytes)
            if id(module) not in self._chains and not any(driver.root is method.name.root for driver in self._orders):
                del self._roots[id(module)]

    def _record(self, name: _Name, example: Example | None, wall_ms: float, failure: Reason | None) -> None:
        key = (id(name.root.module), name.method, name.signature, name.refusal.code if name.refusal else "")
        driver = self._drivers.get(key)
        if driver is None and len(self._drivers) >= MAX_KINDS and name.signature != _OTHERS:
            if example is not None:
                self._budget.give_back(*example.stored_bytes)
            self._record(dataclasses.replace(name, signature=_OTHERS, refusal=refusals.MANY_KINDS), None, wall_ms, None)
            return
        if driver is None:
            driver = self._drivers[key] = DriverEntry("", name.root, name.method, name.signature, refusal=name.refusal)
            self._orders[driver] = name.order
            self._tell({"driver": {"root": name.root.module_class, "method": name.method, "signature": name.signature}})
        driver.count += 1
        if len(driver.wall_ms) < MAX_WALL_SAMPLES:
            driver.wall_ms.append(wall_ms)
        if example is not None and len(driver.examples) < MAX_EXAMPLES and name.refusal is None:
            driver.examples.append(example)
            driver.refusal = None
        elif example is not None:
            self._budget.give_back(*example.stored_bytes)
        if not driver.examples and driver.refusal is None:
            driver.refusal = failure or refusals.NOT_STORED

    def _root(self, module: nn.Module) -> RootEntry | None:
        known = self._roots.get(id(module))
        if known is not None:
            return known
        if len(self._roots) >= MAX_ROOTS:
            self.note("many_roots", f"only the first {MAX_ROOTS} models are watched, because each one is kept in memory")
            return None
        root = RootEntry("", module, type(module).__name__)
        self._roots[id(module)] = root
        self._offloaded[id(module)] = refusals.is_offloaded(module)
        return root

    def _next(self) -> int:
        self._count += 1
        return self._count
