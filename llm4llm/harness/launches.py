"""Triton kernels that a piece of code launches: name, argument types, constants and options, on a GPU and interpreted."""

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

INT32 = range(-(2**31), 2**31)
INT64 = range(-(2**63), 2**63)
# Names of element types in Triton's signatures.
TYPE_NAMES = {
    torch.bool: "i1",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.float8_e5m2fnuz: "fp8e5b16",
}

LaunchFact = dict[str, Any]


class LaunchRecord:
    """Distinct launches in the order in which they were first made."""

    def __init__(self) -> None:
        self.facts: list[LaunchFact] = []
        self._by_key: dict[str, LaunchFact] = {}

    def launch(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> LaunchFact:
        """The fact that stands for this launch, counted once more."""
        fact = described(kernel, args, kwargs)
        key = repr(fact)
        if key not in self._by_key:
            fact.update(grid=_grid(kernel, args, kwargs, grid), count=0, error=None)
            self._by_key[key] = fact
            self.facts.append(fact)
        self._by_key[key]["count"] += 1
        return self._by_key[key]


@contextmanager
def record_launches(record: LaunchRecord | None = None) -> Iterator[list[LaunchFact]]:
    """Collect the launches made inside, as JSON, one entry for equal ones, in a new record or after what is in the given one:

    {"kernel", "file", "line", "arguments": [...], "options": {...}, "grid": [x, y, z] | null, "count", "error": str | null}

    `error` is the first exception that a launch raised, `count` includes failed launches. Empty where triton is not installed.
    """
    record = record or LaunchRecord()
    replaced: list[tuple[type, Callable[..., Any]]] = []
    for kind in _kernel_classes():
        original = kind.__dict__["run"]
        replaced.append((kind, original))
        kind.run = _recording(original, record)
    try:
        yield record.facts
    finally:
        for kind, original in replaced:
            kind.run = original  # type: ignore[attr-defined]


def _kernel_classes() -> list[Any]:
    if importlib.util.find_spec("triton") is None:
        return []
    from triton.runtime.jit import JITFunction

    found = [JITFunction]
    if "triton.runtime.interpreter" in sys.modules or os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        from triton.runtime.interpreter import InterpretedFunction

        found.append(InterpretedFunction)
    return found


def _recording(original: Callable[..., Any], record: LaunchRecord) -> Callable[..., Any]:
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        fact = record.launch(self, args, dict(kwargs), grid)
        try:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        except Exception as error:
            fact["error"] = fact["error"] or f"{type(error).__name__}: {error}"
            raise

    return run


def described(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LaunchFact:
    """A launch without its grid: equal facts compile to the same machine code."""
    function = kernel.fn
    parameters = inspect.signature(function).parameters
    given = dict(zip(parameters, args, strict=False)) | kwargs
    arguments = []
    for name, parameter in parameters.items():
        if name in given or parameter.default is not inspect.Parameter.empty:
            value = given.get(name, parameter.default)
            arguments.append({"name": name, **(constant(value) if is_constexpr(parameter) else argument(value))})
    options = {name: value for name, value in kwargs.items() if name not in parameters}
    code = function.__code__
    return {
        "kernel": function.__name__,
        "file": code.co_filename,
        "line": code.co_firstlineno,
        "arguments": arguments,
        "options": {name: _plain(value) for name, value in sorted(options.items())},
    }


def is_constexpr(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return text.rpartition(".")[2] == "constexpr"


def argument(value: Any) -> dict[str, Any]:
    """{"type", "special"} as Triton specialises an ordinary argument: "D" divisible by 16 (bytes or value), "1" equal to one."""
    if value is None:
        return {"type": "none"}
    if isinstance(value, bool):
        return {"type": "u1"}
    if isinstance(value, int):
        kind = "i32" if value in INT32 else "i64" if value in INT64 else "u64"
        return {"type": kind, "special": "1" if value == 1 else "D" if value % 16 == 0 else ""}
    if isinstance(value, float):
        return {"type": "fp32"}
    if isinstance(value, torch.Tensor):
        special = "D" if value.data_ptr() % 16 == 0 else ""
        return {"type": f"*{TYPE_NAMES.get(value.dtype, str(value.dtype))}", "special": special}
    if isinstance(value, tuple):
        return {"type": "tuple", "items": [argument(item) for item in value]}
    return constant(value) if _is_constant(value) else {"type": "other", "text": type(value).__name__}


def constant(value: Any) -> dict[str, Any]:
    """{"type": "constexpr", ...} with the value in a form that survives JSON."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"type": "constexpr", "value": value}
    if isinstance(value, torch.dtype):
        return {"type": "constexpr", "torch_dtype": str(value).removeprefix("torch.")}
    if type(value).__name__ == "dtype":
        return {"type": "constexpr", "triton_dtype": str(value)}
    if isinstance(value, (tuple, list)):
        return {"type": "constexpr", "items": [constant(item) for item in value]}
    if hasattr(value, "fn") and hasattr(value.fn, "__name__"):
        return {"type": "constexpr", "function": value.fn.__name__}
    return {"type": "other", "text": type(value).__name__}


def _is_constant(value: Any) -> bool:
    return isinstance(value, (str, torch.dtype)) or type(value).__name__ in ("dtype", "constexpr") or hasattr(value, "fn")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _grid(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> list[int] | None:
    """Sizes of the launch grid; None if they can't be told."""
    try:
        if callable(grid):
            parameters = inspect.signature(kernel.fn).parameters
            defaults = {name: one.default for name, one in parameters.items() if one.default is not inspect.Parameter.empty}
            grid = grid({**defaults, **dict(zip(parameters, args, strict=False)), **kwargs})
        sizes = [int(size) for size in (grid if isinstance(grid, (tuple, list)) else (grid,))]
    except Exception:  # the launch itself will report what is wrong with its grid
        return None
    return [*sizes, 1, 1][:3]
