"""Watches what a candidate does besides computing: patched libraries, threads, processes, files, frames, process-wide state.

Everything here is taken before the candidate is imported. It runs in the candidate's own process, so a file that is written to defeat it
can; what matters more is kept elsewhere: references and comparison are in the judge's process, and its clock checks the one used here.
"""

import _thread
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from llm4llm.harness.portrait import same_bits

PERF_COUNTER_NS = time.perf_counter_ns
_GETFRAME = sys._getframe
_ACTIVE = threading.enumerate
_PROCESS_EVENTS = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn", "os.kill", "os.killpg",
)  # fmt: skip
_FILE_EVENTS = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
    "shutil.rmtree",
)
_SPY_EVENTS = (
    "sys._getframe",
    "sys._current_frames",
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
    "sys.settrace",
    "sys.setprofile",
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LIBRARIES = (
    "time", "_thread", "threading", "gc", "os", "builtins", "math", "random", "statistics", "torch", "torch.nn", "torch.nn.functional",
    "torch.cuda", "torch.cuda.streams", "torch.utils.deterministic", "torch.testing", "torch.autograd", "torch.autograd.profiler",
    "torch.profiler", "torch.backends.cuda", "torch.backends.cudnn", "torch.linalg", "torch.special", "torch.random",
)  # fmt: skip
_HERE = str(Path(__file__).resolve().parent.parent) + os.sep
# standard modules pass an event on to their caller; what torch or triton do by themselves (compilers, caches) is theirs
_LIBRARY_FOLDERS = (_HERE, str(Path(torch.__file__).resolve().parent.parent) + os.sep)
_CLASSES: tuple[type, ...] = (torch.Tensor, nn.Module, nn.Parameter, torch.cuda.Event, torch.cuda.Stream, torch.Generator)


@dataclass(frozen=True)
class Violation:
    """Something that a candidate must not do. `rule` is the verdict's kind."""

    rule: str
    detail: str

    def facts(self) -> dict[str, str]:
        return {"rule": self.rule, "detail": self.detail}


class Watchtower:
    """Made before the candidate is imported; `drain` gives what was seen since the last time."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = os.path.realpath(scratch)
        self._seen: list[Violation] = []
        self._file = "\0"
        self._on = False
        self._start_thread = _thread.start_new_thread
        self._libraries: dict[str, dict[str, object]] = {}
        self._classes: dict[type, dict[str, object]] = {}
        self._threads = len(_ACTIVE())

    def arm(self, candidate_file: Path) -> None:
        """Take the identities of everything that is compared later, and start to watch events that come from this file."""
        self._file = str(candidate_file)
        _thread.start_new_thread = self._thread_started
        threading._start_new_thread = self._thread_started  # type: ignore[attr-defined]
        for name in _LIBRARIES:
            if name in sys.modules:
                self._libraries[name] = dict(vars(sys.modules[name]))
        self._classes |= {kind: dict(vars(kind)) for kind in _CLASSES}
        self._threads = len(_ACTIVE())
        sys.addaudithook(self._audit)
        self._on = True

    def watch_classes(self, module: nn.Module) -> None:
        """Also watch the methods of every class in the module's tree."""
        for part in module.modules():
            for kind in type(part).__mro__:
                if kind is not object and kind not in self._classes:
                    self._classes[kind] = dict(vars(kind))

    def drain(self) -> list[Violation]:
        """What was seen since the last call: events, and anything that is no longer what it was."""
        self._on = False
        try:
            self._compare_identities()
            if len(_ACTIVE()) > self._threads:
                self.add("thread", "a thread is running that was not there before")
                self._threads = len(_ACTIVE())
            seen, self._seen = list(dict.fromkeys(self._seen)), []
            return seen
        finally:
            self._on = True

    def add(self, rule: str, detail: str) -> None:
        self._seen.append(Violation(rule, detail))

    def _compare_identities(self) -> None:
        for name, before in self._libraries.items():
            self._changed(name, vars(sys.modules[name]), before)
        for kind, before in self._classes.items():
            self._changed(kind.__qualname__, vars(kind), before)

    def _changed(self, name: str, now: Any, before: dict[str, object]) -> None:
        for key, value in before.items():
            if now.get(key) is not value and not _is_cache(key, value) and not _is_own_wrapper(now.get(key), value):
                self.add("patched_library", f"replaced {name}.{key}")
                before[key] = now.get(key, None)

    def _thread_started(self, function: Callable[..., object], *rest: Any) -> int:
        if self._on and self._blames(_GETFRAME(1)):
            self.add("thread", "started a thread")
        return self._start_thread(function, *rest)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on or event in ("compile", "import", "object.__getattr__", "marshal.loads"):
            return
        rule = self._rule_of(event, arguments)
        if rule is not None:
            self._on = False
            try:
                caller = _GETFRAME(1)
                # named tuples and data classes look at frames too: only a look from the file itself counts
                direct = rule[0] != "introspection" or caller.f_code.co_filename == self._file
                if direct and self._blames(caller):
                    self.add(*rule)
            finally:
                self._on = True

    def _rule_of(self, event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
        if event.startswith("socket.") and event != "socket.gethostname":
            return "network", f"used the network ({event})"
        if event in _PROCESS_EVENTS:
            return "process", f"started or signalled a process ({event})"
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES and isinstance(path, (str, bytes)) and not self._inside(os.fsdecode(path)):
                return "file", f"opened {os.path.basename(os.fsdecode(path))} for writing"
            return None
        if event in _FILE_EVENTS:
            return "file", f"changed the file system ({event})"
        if event in _SPY_EVENTS:
            return "introspection", f"looked into the interpreter ({event})"
        return ("foreign_code", f"loaded native code ({event})") if event == "ctypes.dlopen" and arguments and arguments[0] else None

    def _inside(self, path: str) -> bool:
        real = os.path.realpath(path)
        return real.startswith(self._scratch + os.sep) or real in ("/dev/null",)

    def _blames(self, frame: FrameType | None) -> bool:
        """True if the candidate's file did it: no library outside the standard one stands between the file and the event."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name == self._file:
                return True
            if name.startswith(_LIBRARY_FOLDERS):
                return False
            frame = frame.f_back
        return False


def _is_cache(key: str, value: object) -> bool:
    """Names that libraries fill in or rebind by themselves."""
    if isinstance(value, (bool, int, float, str, tuple, type(None))) and key.startswith("_"):
        return True
    return key in (
        "__warningregistry__",
        "__annotations__",
        "__doc__",
        "__dict__",
        "__weakref__",
        "__abstractmethods__",
        "_abc_impl",
        "_dangling",
    )


def _is_own_wrapper(now: object, before: object) -> bool:
    """True for a function that torch itself wrapped around the old one, as importing its compiler does."""
    code = getattr(now, "__code__", None)
    return code is not None and getattr(now, "__wrapped__", None) is before and code.co_filename.startswith(_LIBRARY_FOLDERS)


def process_state() -> dict[str, Any]:
    """Process-wide state that a call must leave alone, by name."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": str(torch.get_default_dtype()),
        "number of threads": torch.get_num_threads(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "TF32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled(), torch._C._get_deterministic_fill_uninitialized_memory()),
        "environment variables": dict(os.environ),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "working directory": os.getcwd(),
    }


def state_changes(before: dict[str, Any], after: dict[str, Any]) -> list[Violation]:
    changed = [name for name in before if before[name] != after[name]]
    return [Violation("process_state", f"changed the process's {name}") for name in changed]


class Spy:
    """Counts calls of the task module's own class forward: answering through the original is no candidate."""

    def __init__(self, module: nn.Module) -> None:
        kind = type(module)
        original = kind.forward
        self.original: Callable[..., Any] = original
        self.calls = 0
        # a nested part of the same class is not the module itself
        self.exempt = {id(part) for part in module.modules() if part is not module}

        def forward(instance: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if id(instance) not in self.exempt:
                self.calls += 1
            return original(instance, *args, **kwargs)

        forward.__wrapped__ = original  # type: ignore[attr-defined]
        forward.__name__, forward.__doc__, forward.__qualname__ = original.__name__, original.__doc__, original.__qualname__
        kind.forward = forward


class ModuleRecord:
    """What a module is made of, to see that `prepare` and calls left it alone."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parts = {
            path: {key: id(item) for key, item in vars(part).items() if not isinstance(item, dict)} for path, part in module.named_modules()
        }
        self._tables = {
            path: {key: {name: id(entry) for name, entry in item.items()} for key, item in vars(part).items() if isinstance(item, dict)}
            for path, part in module.named_modules()
        }
        self._alive = [list(vars(part).values()) for part in module.modules()]
        self._values = {name: tensor.detach().clone() for name, tensor in _weights(module)}
        self._buffers = {name for name, _ in module.named_buffers()}

    def changes(self, *, attributes: bool = True) -> list[Violation]:
        """Differences from the recorded state. `attributes` False looks at weights alone (a call may change what the module keeps)."""
        found = []
        now = dict(_weights(self._module))
        for name, before in self._values.items():
            if name in self._buffers and not attributes:
                continue
            after = now.get(name)
            if after is None or after.shape != before.shape or after.dtype != before.dtype or not same_bits(before, after):
                found.append(f"changed {name}")
        if attributes:
            for path, part in self._module.named_modules():
                plain = {key: id(item) for key, item in vars(part).items() if not isinstance(item, dict)}
                tables = {
                    key: {name: id(entry) for name, entry in item.items()} for key, item in vars(part).items() if isinstance(item, dict)
                }
                before_plain, before_tables = self._parts.get(path, {}), self._tables.get(path, {})
                changed = [key for key in plain.keys() | before_plain.keys() if plain.get(key) != before_plain.get(key)]
                changed += [key for key in tables.keys() | before_tables.keys() if tables.get(key) != before_tables.get(key)]
                found += [f"changed {key} of {path or 'the module'}" for key in changed]
        return [Violation("module_changed", detail) for detail in found]


def _weights(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return [(name, tensor.data) for name, tensor in named]
