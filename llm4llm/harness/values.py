"""Nested values: walk them, copy them without aliasing, and take what a module keeps.

A call is only reproducible if everything it can reach was copied before it ran: a cache object is changed by the call, and a tensor
captured by reference would later be compared with itself. Copies keep strides, storage offsets relative to each other, and sharing:
two views of one buffer in the original are two views of one buffer in the copy.
"""

import copy
import enum
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

# what instruments and patches put into a module's dict is no state of its own
PLAIN_MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) | {"forward", "_old_forward", "_hf_hook", "_replicate_for_data_parallel"}
_BY_REFERENCE = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    slice,
    type,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    nn.Module,
    nn.Parameter,
)


class NotReplayable(Exception):
    """A value that can't be copied faithfully; the message names its path and type."""


def is_object(value: object) -> bool:
    """True for instances of ordinary classes, whose attributes are walked."""
    closed = (torch.Tensor, nn.Module, type, types.FunctionType, types.MethodType, types.ModuleType, enum.Enum)
    return hasattr(value, "__dict__") and not isinstance(value, closed)


def leaves(value: object, path: str = "", _seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, object]]:
    """(path, leaf) of everything that a nested value holds, in a stable order; cycles are cut."""
    if isinstance(value, (*_BY_REFERENCE, torch.Tensor)):
        yield path, value
        return
    if id(value) in _seen:
        return
    seen = _seen | {id(value)}
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]", seen)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]", seen)
    elif is_object(value):
        for key, item in vars(value).items():
            yield from leaves(item, f"{path}.{key}", seen)
    else:
        yield path, value


def tensors(value: object) -> list[torch.Tensor]:
    """Every tensor that a nested value holds, in walking order."""
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def replaced(value: Any, change: Callable[[torch.Tensor], Any], memo: dict[int, Any] | None = None, path: str = "") -> Any:
    """A deep copy of a nested value with every tensor t replaced by change(t); sharing of objects is kept."""
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)][0]
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, torch.Tensor):
        copied: Any = change(value)
    elif isinstance(value, _BY_REFERENCE):
        return value
    else:
        return _replaced_container(value, change, memo, path)
    memo[id(value)] = (copied, value)
    return copied


def _replaced_container(value: Any, change: Callable[[torch.Tensor], Any], memo: dict[int, Any], path: str) -> Any:
    if isinstance(value, tuple):
        items = [replaced(item, change, memo, f"{path}[{index}]") for index, item in enumerate(value)]
        rebuilt: Any = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        memo[id(value)] = (rebuilt, value)
        return rebuilt
    if isinstance(value, (set, frozenset)):
        return type(value)(value)
    if isinstance(value, torch.Generator):
        twin = torch.Generator(device=value.device)
        twin.set_state(value.get_state())
        return twin
    if not isinstance(value, (list, dict)) and not is_object(value):
        return _copied_opaque(value, path)
    copied = _copied_shallow(value, path)
    memo[id(value)] = (copied, value)
    if isinstance(value, list):
        for index, item in enumerate(value):
            copied[index] = replaced(item, change, memo, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            dict.__setitem__(copied, key, replaced(item, change, memo, f"{path}[{key!r}]"))
    if is_object(value):
        for key, item in vars(value).items():
            vars(copied)[key] = replaced(item, change, memo, f"{path}.{key}")
    return copied


def _copied_shallow(value: Any, path: str) -> Any:
    try:
        return copy.copy(value)
    except Exception as error:
        raise NotReplayable(f"{path or 'a value'} is a {type(value).__name__}, which can't be copied ({error})") from error


def _copied_opaque(value: Any, path: str) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise NotReplayable(f"{path or 'a value'} is a {type(value).__name__}, which can't be copied ({error})") from error


def _extent(tensor: torch.Tensor) -> int:
    """Elements of memory between the first and the last element of a strided tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((int(size) - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))


class _TensorCopier:
    """Copies strided tensors with their strides; views of one storage stay views of one storage."""

    def __init__(self, found: list[torch.Tensor]) -> None:
        spans: dict[tuple[int, torch.dtype], list[int]] = {}
        for tensor in found:
            if self._plain(tensor) and tensor.numel():
                start = int(tensor.storage_offset())
                span = spans.setdefault(self._key(tensor), [start, start])
                span[0], span[1] = min(span[0], start), max(span[1], start + _extent(tensor))
        self._spans = spans
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    @staticmethod
    def _plain(tensor: torch.Tensor) -> bool:
        return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.device.type != "meta"

    @staticmethod
    def _key(tensor: torch.Tensor) -> tuple[int, torch.dtype]:
        return tensor.untyped_storage().data_ptr(), tensor.dtype

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self._plain(tensor):
            return copy.deepcopy(tensor.detach())
        if not tensor.numel():
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        key = self._key(tensor)
        start, end = self._spans[key]
        if key not in self._buffers:
            with torch.no_grad():
                raw = tensor.detach().as_strided((end - start,), (1,), start)
                self._buffers[key] = raw.clone()
        return self._buffers[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - start)


def tensor_copier(found: list[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that copies the tensors in `found` (and only those), views of one storage staying views of one storage."""
    return _TensorCopier(found)


def snapshot(value: Any) -> Any:
    """A deep copy that shares no memory with `value`, except modules, parameters, functions and types, which stay references.

    Raises NotReplayable for values that can't be copied (locks, open files, iterators).
    """
    return replaced(value, _TensorCopier(tensors(value)))


def kept_by(module: nn.Module) -> dict[str, dict[str, Any]]:
    """What a module and its submodules keep besides parameters: {path: {"plain": attributes, "buffers": tensors}}, by reference."""
    kept: dict[str, dict[str, Any]] = {}
    for path, part in module.named_modules():
        plain = {key: item for key, item in vars(part).items() if key not in PLAIN_MODULE_ATTRIBUTES}
        plain = {key: item for key, item in plain.items() if not isinstance(item, (nn.Module, types.FunctionType))}
        kept[path] = {"plain": plain, "buffers": dict(part._buffers)}
    return kept


def restore(module: nn.Module, kept: dict[str, dict[str, Any]]) -> None:
    """Put a module back to what `kept_by` took (give it a snapshot: the values are handed over, not copied)."""
    for path, part in module.named_modules():
        if path not in kept:
            continue
        plain, buffers = kept[path]["plain"], kept[path]["buffers"]
        known = plain.keys() | PLAIN_MODULE_ATTRIBUTES
        for key in [key for key, item in vars(part).items() if key not in known and not isinstance(item, types.FunctionType)]:
            del vars(part)[key]
        vars(part).update(plain)
        part._buffers.clear()
        part._buffers.update(buffers)
