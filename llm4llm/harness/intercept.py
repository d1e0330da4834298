"""Wrappers on classes that tell a Recorder of outermost model calls, and nothing else.

Forwards are seen at `nn.Module.__call__`. Other entry methods (`generate`, `encode`, a method of the user's own class) must be wrapped on
their classes before they are called, because inputs are copied before the call: every public method of classes that the user wrote,
methods of library classes that are named like entry methods, and any method that once turned out to enclose a forward.
`remove` leaves every class's dictionary as it was.
"""

import functools
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from llm4llm.harness.recording import INSIDE, WAITING, Recorder
from llm4llm.harness.workload import FORWARD

_ENTRY_NAMES = re.compile(
    r"(generate|sample|encode|decode|predict|infer|translate|transcribe|score|embed|rank|rerank|classify|summari[sz]e|chat|complete|answer"
    r"|step|run|greedy|beam|get_\w*features)(_\w+)?"
)
_NOT_ENTRIES = frozenset(dir(nn.Module)) - {FORWARD}
_DEFERRED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_IDLE_CALLS = 2  # calls of a method without any forward below, after which its inputs are no longer copied
_TRACED_TYPES = frozenset({"FakeTensor", "FunctionalTensor", "Proxy"})
_PACKAGE = "llm4llm."
_LIBRARIES = re.compile(r"[/\\](site-packages|dist-packages)[/\\]")


class Interception:
    """The wrappers of one process; `install` once, `remove` once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._originals: dict[tuple[type, str], Any] = {}
        self._wrapped: dict[tuple[type, str], Any] = {}
        self._seen: set[type] = set()
        self._codes: dict[CodeType, tuple[type, str]] = {}
        self._idle: dict[tuple[type, str], int] = {}  # -1: encloses forwards
        self._local = threading.local()
        self._changing = threading.RLock()
        self._jit: dict[str, Any] = {}

    def install(self) -> None:
        """Put wrappers on nn.Module and torch.jit; classes of models follow when their first instance is made."""
        _hide_from_compiler()
        self._put(nn.Module, "__call__", self._calling(nn.Module.__call__))
        self._put(nn.Module, "__init__", self._adopting(nn.Module.__init__))
        self._put(nn.Module, "__setstate__", self._adopting(nn.Module.__setstate__))
        for name in ("script", "trace", "trace_module"):
            self._jit[name] = getattr(torch.jit, name)
            setattr(torch.jit, name, self._stepping_aside(self._jit[name]))

    def remove(self) -> None:
        """Take every wrapper off; wrappers that somebody still holds pass calls through."""
        with self._changing:
            for (owner, name), original in self._originals.items():
                if vars(owner).get(name) is self._wrapped[owner, name]:
                    type.__setattr__(owner, name, original)
            for name, original in self._jit.items():
                setattr(torch.jit, name, original)
            self._originals.clear()
            self._jit.clear()

    def _put(self, owner: type, name: str, wrapper: Any) -> None:
        with self._changing:
            self._originals[owner, name] = vars(owner)[name]
            self._wrapped[owner, name] = wrapper
            type.__setattr__(owner, name, wrapper)

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        """Classes as they were: TorchScript compiles the source of whatever it finds there, in the namespace that it finds there."""
        with self._changing:
            taken = [key for key in self._originals if vars(key[0]).get(key[1]) is self._wrapped[key]]
            for owner, name in taken:
                type.__setattr__(owner, name, self._originals[owner, name])
            try:
                yield
            finally:
                for owner, name in taken:
                    if (owner, name) in self._originals:
                        type.__setattr__(owner, name, self._wrapped[owner, name])

    def _stepping_aside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        looks_at_caller = "_frames_up" in inspect.signature(original).parameters

        @functools.wraps(original)
        def compiling(*args: Any, **kwargs: Any) -> Any:
            # torch.jit.script resolves names in its caller's frame, which is one further up now
            if looks_at_caller and len(args) < 3:
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            with self._suspended():
                return original(*args, **kwargs)

        return compiling

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, is_compiling = self._recorder, torch.compiler.is_compiling

        @functools.wraps(original)
        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or recorder.level == INSIDE:
                return original(self, *args, **kwargs)
            return outermost(self, args, kwargs)

        def outermost(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if recorder.level == WAITING:
                recorder.entered()
                return original(module, *args, **kwargs)
            if self._is_aside(args) or self._is_within_unseen(module):
                return original(module, *args, **kwargs)
            return recorder.forward(module, original, args, kwargs)

        return __call__

    def _adopting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def first_seen(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and type(module) not in self._seen:
                self._adopt(type(module))
            return original(module, *args, **kwargs)

        return first_seen

    def _adopt(self, kind: type) -> None:
        """Wrap the entry methods of a module class and of everything it inherits from."""
        self._seen.add(kind)
        try:
            for owner in kind.__mro__:
                package = owner.__module__.partition(".")[0]
                if owner is object or package in ("torch", "typing", "abc", "builtins"):
                    continue
                is_library = _is_library(owner)
                for name, item in list(vars(owner).items()):
                    if isinstance(item, FunctionType):
                        self._consider(owner, name, item, is_library=is_library)
        except Exception as error:
            self._recorder.note("recording_failed", f"methods of {kind.__name__} are not watched: {type(error).__name__}: {error}")

    def _consider(self, owner: type, name: str, function: FunctionType, *, is_library: bool) -> None:
        plain = inspect.unwrap(function)
        code = getattr(plain, "__code__", None)
        if (owner, name) in self._originals or code is None or code.co_flags & _DEFERRED:
            return
        if name not in _NOT_ENTRIES:
            self._codes.setdefault(code, (owner, name))
        is_public = not name.startswith("_") and name not in _NOT_ENTRIES and name != FORWARD
        if is_public and (not is_library or _ENTRY_NAMES.fullmatch(name)):
            self._put(owner, name, self._entering(owner, name, function))

    def _entering(self, owner: type, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder, is_compiling, key = self._recorder, torch.compiler.is_compiling, (owner, name)

        @functools.wraps(original)
        def entry(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or recorder.level:
                return original(*args, **kwargs)
            if not args or not isinstance(args[0], nn.Module):
                return self._unwatched(original, args, kwargs)  # a mixin's method on something that is no module
            return outermost(args[0], args[1:], kwargs)

        def outermost(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._idle.get(key, 0) >= _IDLE_CALLS or self._is_aside(args) or getattr(self._local, "unwatched", False):
                return original(module, *args, **kwargs)
            if name == FORWARD:
                return recorder.forward(module, original, args, kwargs)
            return self._watch(key, original, (module, *args), kwargs)

        return entry

    def _watch(self, key: tuple[type, str], original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            # Reached with nobody recording only if this call can't be one driver call.
            return original(*args, **kwargs) if self._recorder.level else self._unwatched(original, args, kwargs)

        result, called = self._recorder.method(args[0], key[1], run, args[1:], kwargs)
        if called:
            self._idle[key] = -1
        elif called is False and self._idle.get(key, 0) >= 0:
            self._idle[key] = self._idle.get(key, 0) + 1
        return result

    def _unwatched(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a method whose forwards stand for themselves."""
        before = getattr(self._local, "unwatched", False)
        self._local.unwatched = True
        try:
            return original(*args, **kwargs)
        finally:
            self._local.unwatched = before

    def _is_aside(self, args: tuple[Any, ...]) -> bool:
        """True while torch only traces, or while copies would become part of a CUDA graph."""
        if torch._C._get_tracing_state() is not None or any(type(item).__name__ in _TRACED_TYPES for item in args):
            return True
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def _is_within_unseen(self, module: nn.Module) -> bool:
        """True if this forward belongs to a call of a method that was not watched; from now on that method is."""
        if getattr(self._local, "unwatched", False):
            return False
        found: tuple[type, str] | None = None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            found = self._codes.get(frame.f_code, found)
            frame = frame.f_back
        if found is None:
            return False
        owner, name = found
        self._idle[found] = -1
        if name != FORWARD and isinstance(module, owner):
            return False  # a method that calls its own module: those forwards stand for themselves
        if found not in self._originals and isinstance(vars(owner).get(name), FunctionType):
            self._put(owner, name, self._entering(owner, name, vars(owner)[name]))
        self._recorder.note(
            "first_call_missed", f"the first call of {owner.__name__}.{name} was not recorded, because it was not known to run the model"
        )
        return True


def _is_library(owner: type) -> bool:
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return file is not None and bool(_LIBRARIES.search(str(Path(file))))


def _hide_from_compiler() -> None:
    """Keep torch.compile from translating our own frames where compiled code calls back into Python."""
    skip = getattr(torch._C._dynamo.eval_frame, "skip_code", None)
    if skip is None:
        return
    modules: list[ModuleType | None] = [sys.modules.get(name) for name in list(sys.modules) if name.startswith(_PACKAGE)]
    for module in filter(None, modules):
        for item in list(vars(module).values()):
            owned = vars(item).values() if isinstance(item, type) and item.__module__.startswith(_PACKAGE) else [item]
            for function in owned:
                if isinstance(function, FunctionType) and function.__module__.startswith(_PACKAGE):
                    _skip(function.__code__, skip)


def _skip(code: CodeType, skip: Callable[[CodeType], None]) -> None:
    skip(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _skip(constant, skip)
