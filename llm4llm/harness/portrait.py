"""A nested value as plain data: a tree of type names and scalars, and its tensors as bytes.

A candidate's answer crosses a process border. It is never unpickled there, since a pickle runs code: it travels as a portrait, which can
only be compared. Two portraits are equal if and only if the values have the same containers, types, keys, scalars and shared objects.
"""

import ctypes
import enum
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from llm4llm.harness.values import is_object

Tree = dict[str, Any]
_BY_NAME = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, nn.Module, type)
_EXACT_TYPES = (torch.Tensor, nn.Parameter)


def type_name(value: object) -> str:
    """The qualified name of a value's class; classes of the standard containers by their short name."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True)
class Leaf:
    """One tensor of a portrait: its contract (type, dtype, shape, stride, device) and its values on the CPU, contiguous.

    `stride` leaves out dimensions of size 1, where a stride means nothing, and is empty for an empty tensor.
    `values` is None for a tensor that is exactly as it was before the call.
    """

    path: str
    type: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    values: torch.Tensor | None
    requires_grad: bool = False

    def facts(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "type": self.type,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "stride": list(self.stride),
            "device": self.device,
            "requires_grad": self.requires_grad,
        }


def leaf(path: str, tensor: torch.Tensor, *, values: bool = True) -> Leaf:
    """What can be said of one tensor. A subclass is only named: its overrides never run here."""
    exact = type(tensor) in _EXACT_TYPES and tensor.layout is torch.strided
    if not exact:
        return Leaf(path, type_name(tensor), "", (), (), "", None)
    shape = tuple(int(size) for size in tensor.shape)
    stride = tuple(int(step) for step, size in zip(tensor.stride(), shape, strict=True) if size > 1) if tensor.numel() else ()
    known = plain(tensor) if values and tensor.device.type != "meta" else None
    return Leaf(
        path, "torch.Tensor", str(tensor.dtype).removeprefix("torch."), shape, stride, str(tensor.device), known, tensor.requires_grad
    )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A detached contiguous copy on the CPU, conjugations and negations carried out."""
    with torch.no_grad():
        return tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()


class _Painter:
    def __init__(self) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []

    def paint(self, value: Any, path: str) -> Tree:
        if isinstance(value, torch.Tensor):
            self.tensors.append((path, value))
            return {"tensor": len(self.tensors) - 1}
        if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, enum.Enum)):
            return {"is": type_name(value), "value": value}
        if isinstance(value, _BY_NAME):
            return {"name": getattr(value, "__qualname__", type_name(value))}
        if isinstance(value, tuple):
            return {"is": type_name(value), "items": [self.paint(item, f"{path}[{index}]") for index, item in enumerate(value)]}
        if not isinstance(value, (list, dict)) and not is_object(value):
            return self._opaque(value)
        if id(value) in self._seen:
            return {"again": self._seen[id(value)]}
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return self._container(value, path)

    def _container(self, value: Any, path: str) -> Tree:
        tree: Tree = {"is": type_name(value)}
        if isinstance(value, list):
            tree["items"] = [self.paint(item, f"{path}[{index}]") for index, item in enumerate(value)]
        elif isinstance(value, dict):
            tree["keys"] = [[repr(key), self.paint(item, f"{path}[{key!r}]")] for key, item in dict.items(value)]
        if is_object(value):
            tree["attributes"] = {str(key): self.paint(item, f"{path}.{key}") for key, item in sorted(vars(value).items())}
        return tree

    @staticmethod
    def _opaque(value: Any) -> Tree:
        if isinstance(value, (set, frozenset)):
            return {"is": type_name(value), "value": sorted(repr(item) for item in value)}
        known = (float, complex, bytes, enum.Enum, torch.dtype, torch.device, torch.Size, range, slice, torch.layout, torch.memory_format)
        return {"is": type_name(value), "value": repr(value)} if isinstance(value, known) else {"is": type_name(value)}


def portrait(parts: dict[str, Any]) -> tuple[Tree, list[tuple[str, torch.Tensor]]]:
    """The tree of some named values and their tensors by path ("result[0]"), in walking order, shared ones as often as they occur.

    One walk for all parts: that the result *is* an argument's object belongs to the picture.
    """
    painter = _Painter()
    return {name: painter.paint(value, name) for name, value in parts.items()}, painter.tensors


def first_difference(got: Any, want: Any, path: str = "") -> str | None:
    """Where two trees first differ, in words; None if they are equal."""
    if isinstance(got, dict) and isinstance(want, dict):
        if got.get("is") != want.get("is"):
            return f"{path or 'the result'} is a {_said(got)} instead of a {_said(want)}"
        if got.keys() != want.keys():
            return f"{path or 'the result'} holds {sorted(got)} instead of {sorted(want)}"
        return next((found for key in want if (found := first_difference(got[key], want[key], _below(path, key)))), None)
    if isinstance(got, list) and isinstance(want, list):
        if len(got) != len(want):
            return f"{path or 'the result'} has {len(got)} {'entry' if len(got) == 1 else 'entries'} instead of {len(want)}"
        pairs = enumerate(zip(got, want, strict=True))
        return next((found for index, (one, two) in pairs if (found := first_difference(one, two, f"{path}[{index}]"))), None)
    return None if type(got) is type(want) and got == want else f"{path or 'the result'} is {got!r} instead of {want!r}"


def _said(tree: Tree) -> str:
    return str(tree.get("is") or ("torch.Tensor" if "tensor" in tree else "known value"))


def _below(path: str, key: str) -> str:
    return path if key in ("items", "keys", "attributes", "value", "tensor") else f"{path}.{key}".lstrip(".")


def as_bytes(tensor: torch.Tensor) -> bytes:
    """The memory of a contiguous CPU tensor."""
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def from_bytes(content: bytes, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor that `as_bytes` took; raises ValueError if the bytes do not fit the shape."""
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or any(size < 0 for size in shape):
        raise ValueError(f"no tensor is {dtype} {shape}")
    count = 1
    for size in shape:
        count *= size
    if count * kind.itemsize != len(content):
        raise ValueError(f"{len(content)} bytes are no {dtype} {shape}")
    return torch.frombuffer(bytearray(content), dtype=kind).reshape(shape) if count else torch.empty(shape, dtype=kind)


def storages(found: list[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """(position, address of the storage) of the plain tensors that hold memory."""
    for index, tensor in enumerate(found):
        if type(tensor) in _EXACT_TYPES and tensor.layout is torch.strided and tensor.numel() and tensor.device.type != "meta":
            yield index, tensor.untyped_storage().data_ptr()


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal values, and NaN in the same places; shapes and dtypes are equal already."""
    with torch.no_grad():
        if torch.equal(left, right):
            return True
        if not (left.is_floating_point() or left.is_complex()):
            return False
        return bool(((left == right) | (left.isnan() & right.isnan())).all())
