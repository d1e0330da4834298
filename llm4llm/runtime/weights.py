"""Notice that a module's weights are not the ones that `prepare` read.

A parameter counts as changed when another object took its place (load_state_dict with assign), when its memory moved (`.to()`), or when
torch's version counter went up (in-place edits, load_state_dict). A buffer may be a module's own working memory (a cache), so it is held
to the same rules only if `prepare` read it; any other must keep its dtype and device. A submodule counts as changed when another took its
place. Writes through `.data` bypass torch's counter and are not seen; inference tensors have no counter at all.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class ReadTensors(TorchDispatchMode):
    """Collects the storages that operators read while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in [*args, *(kwargs or {}).values()]:
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                    self.storages.add(tensor.untyped_storage().data_ptr())
        return func(*args, **(kwargs or {}))


def weights_watch(module: nn.Module, read: frozenset[int] = frozenset()) -> Callable[[], bool]:
    """A test whether the weights under a module are still those of now. `read`: storages (addresses) whose buffers are weights too."""
    weights: list[tuple[dict[str, Any], str, torch.Tensor, int, int | None]] = []
    buffers: list[tuple[dict[str, Any], str, torch.dtype, torch.device]] = []
    children: list[tuple[dict[str, Any], str, nn.Module | None]] = []
    for part in module.modules():
        children += [(part._modules, name, child) for name, child in part._modules.items()]
        kept = [(part._buffers, name, tensor) for name, tensor in part._buffers.items() if tensor is not None]
        held = [(part._parameters, name, tensor) for name, tensor in part._parameters.items() if tensor is not None]
        held += [entry for entry in kept if _storage(entry[2]) in read]  # type: ignore[misc]
        weights += [(owner, name, tensor, tensor.data_ptr(), version(tensor)) for owner, name, tensor in held]
        buffers += [(owner, name, tensor.dtype, tensor.device) for owner, name, tensor in kept if _storage(tensor) not in read]

    def unchanged() -> bool:
        for owner, name, tensor, address, seen in weights:
            if owner.get(name) is not tensor or tensor.data_ptr() != address or (seen is not None and tensor._version != seen):
                return False
        for owner, name, child in children:
            if owner.get(name) is not child:
                return False
        for owner, name, dtype, device in buffers:
            now = owner.get(name)
            if now is None or now.dtype is not dtype or now.device != device:
                return False
        return True

    return unchanged


def version(tensor: torch.Tensor) -> int | None:
    """torch's count of in-place writes; None for inference tensors, which are not counted."""
    return None if tensor.is_inference() else tensor._version


def _storage(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else None
