"""Which memory a piece of code reads or writes, so that a task need not carry what its module never looks at."""

from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that use a tensor's shape, dtype and device but no element of it.
_METADATA_ONLY = frozenset(
    [
        *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"),
        *("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
        *("size", "sym_size", "stride", "sym_stride", "storage_offset", "sym_storage_offset", "numel", "sym_numel", "dim"),
        *("is_contiguous", "is_same_size", "device", "dtype", "layout"),
    ]
)
# Python-level ways to a tensor's memory that no operator shows: kernels of other libraries, numpy, DLPack.
_RAW_ACCESS = frozenset(
    [
        *("data_ptr", "const_data_ptr", "mutable_data_ptr", "untyped_storage", "storage", "tolist"),
        *("numpy", "__array__", "__dlpack__", "__cuda_array_interface__"),
    ]
)


class Touched:
    """A context that collects addresses of the storages whose elements are read or written in it.

    Results may differ from a run without it (some modules look for active modes), so they are not for use.
    """

    def __init__(self) -> None:
        self.storages: set[int] = set()
        self._stack = ExitStack()

    def __enter__(self) -> "Touched":
        self._stack.enter_context(_FunctionMode(self))
        self._stack.enter_context(_DispatchMode(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def touches(self, tensor: torch.Tensor) -> bool:
        address = storage_of(tensor)
        return address is None or address in self.storages

    def add(self, values: Any) -> None:
        for leaf in tree_leaves(values):
            if isinstance(leaf, torch.Tensor) and (address := storage_of(leaf)) is not None:
                self.storages.add(address)


def storage_of(tensor: torch.Tensor) -> int | None:
    """Address of a tensor's storage; None for tensors without plain memory (sparse, meta, subclasses that wrap others)."""
    with torch._C.DisableTorchFunction():  # or the look itself would count as raw access
        try:
            return tensor.untyped_storage().data_ptr() or None
        except (NotImplementedError, RuntimeError):
            return None


def storage_bytes(tensor: torch.Tensor) -> int:
    """Size of a tensor's storage; 0 for tensors without plain memory."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.untyped_storage().nbytes()
        except (NotImplementedError, RuntimeError):
            return 0


class _DispatchMode(TorchDispatchMode):
    def __init__(self, touched: Touched) -> None:
        super().__init__()
        self._touched = touched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _only_looks(func):
            self._touched.add((args, kwargs))
            self._touched.add(result)
        return result


class _FunctionMode(TorchFunctionMode):
    def __init__(self, touched: Touched) -> None:
        super().__init__()
        self._touched = touched

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _RAW_ACCESS:
            self._touched.add(args[:1])
        return func(*args, **(kwargs or {}))


def _only_looks(func: Any) -> bool:
    """True for views and for operations that only use a tensor's form."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False
    name = schema.name.rpartition("::")[2]
    if name in _METADATA_ONLY:
        return True
    aliases = [one.alias_info for one in [*schema.arguments, *schema.returns] if one.alias_info is not None]
    returns_view = any(one.alias_info is not None for one in schema.returns)
    return returns_view and not any(alias.is_write for alias in aliases)
