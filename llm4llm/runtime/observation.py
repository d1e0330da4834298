"""Facts of one call: how it was bound, what its arguments are, and the state of torch around it.

Arguments are laid out flat: positional ones, then keyword ones by name, then the items of every list, tuple and dict in the order in which
those are met. Guard and observation share this layout, so that a call is checked in one pass.
"""

import itertools
from typing import Any

import torch
from torch import nn

from .signature import layer_index, qualified_name
from .state import object_state

MAX_SLOTS = 256
Slot = tuple[str, Any]


def observe(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Facts of one call, taken before it runs and inside its grad, inference and autocast state; JSON-able."""
    slots = laid_out(args, kwargs)
    here = module_device(module)
    index = layer_index(module)
    devices = {here.type} if here is not None else set()
    facts = []
    for path, value in slots:
        if isinstance(value, torch.Tensor):
            here = value.device if here is None else here
            devices.add(value.device.type)
        facts.append([path, _fact(value, here, index)])
    return {
        "positional": len(args),
        "keywords": sorted(kwargs),
        "ambient": {
            "training": bool(module.training),
            "grad": torch.is_grad_enabled() and needs_grad(module, [value for _, value in slots]),
            "inference": torch.is_inference_mode_enabled(),
            "autocast": {device: autocast_dtype(device) for device in sorted(devices) if device != "meta"},
        },
        "slots": facts,
    }


def laid_out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Slot]:
    """(path, value) of every argument and, behind them, of every item of a list, tuple or dict among them."""
    slots: list[Slot] = [(str(position), value) for position, value in enumerate(args)]
    slots += [(name, kwargs[name]) for name in sorted(kwargs)]
    at = 0
    while at < len(slots) and len(slots) <= MAX_SLOTS:
        path, value = slots[at]
        if type(value) in (list, tuple):
            slots += [(f"{path}[{position}]", item) for position, item in enumerate(value)]
        elif type(value) is dict:
            slots += [(f"{path}[{key!r}]", item) for key, item in value.items()]
        at += 1
    return slots


def module_device(module: nn.Module) -> torch.device | None:
    """Where the module's first parameter or buffer lies; None if it has neither."""
    first: torch.Tensor | None = next(module.parameters(), None)
    if first is None:
        first = next(module.buffers(), None)
    return None if first is None else first.device


def needs_grad(module: nn.Module, values: list[Any]) -> bool:
    """Whether a call with grad mode on would record anything: patches are for inference and never stand in for such a call."""
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in values):
        return True
    return any(parameter.requires_grad for parameter in module.parameters())


def autocast_dtype(device: str) -> str | None:
    """The dtype that autocast casts to on this type of device now; None if it is off or unknown there."""
    try:
        return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None
    except RuntimeError:  # a device type that has no autocast
        return None


def layout_of(tensor: torch.Tensor) -> str:
    """The stride pattern: "contiguous", or axes from outermost to innermost with what separates each from the next.

    "0 gap 2 tight 1 step 2" reads: axis 0 is outermost with unused memory behind each of its rows, axis 2 follows without a gap, and
    the innermost axis 1 takes every second element; "over 3" names broadcast axes. Axes of one element have no say.
    """
    if tensor.is_contiguous():
        return "contiguous"
    sizes, strides = tensor.shape, tensor.stride()
    broadcast = [axis for axis, size in enumerate(sizes) if size > 1 and strides[axis] == 0]
    order = sorted((axis for axis, size in enumerate(sizes) if size > 1 and strides[axis]), key=lambda axis: (-strides[axis], axis))
    pairs = itertools.pairwise(order)
    words = [f"{outer} {'tight' if strides[outer] == strides[inner] * sizes[inner] else 'gap'}" for outer, inner in pairs]
    if order:
        words.append(f"{order[-1]} step {strides[order[-1]]}")
    if broadcast:
        words.append("over " + ",".join(map(str, broadcast)))
    return " ".join(words)


def _fact(value: Any, here: torch.device | None, index: int | None) -> dict[str, Any]:
    if value is None or type(value) in (bool, str):
        return {"kind": "value", "type": type(value).__name__, "value": value}
    if type(value) is int:
        return {"kind": "int", "range": [value, value]}
    if type(value) in (float, complex, bytes) or isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return {"kind": "text", "type": type(value).__name__, "value": repr(value)}
    if type(value) in (list, tuple):
        return {"kind": "sequence", "type": type(value).__name__, "length": len(value)}
    if type(value) is dict:
        plain = all(type(key) is str for key in value)
        return {"kind": "dict", "keys": list(value)} if plain else _unsupported(value)
    if isinstance(value, torch.Tensor):
        return _tensor_fact(value, here)
    if isinstance(value, (nn.Module, type)) or callable(value):
        name = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
        return {"kind": "named", "name": f"{name.__module__}.{name.__qualname__}"}
    if hasattr(value, "__dict__"):
        return {"kind": "object", **object_state(value, index)}
    return _unsupported(value)


def _unsupported(value: Any) -> dict[str, Any]:
    return {"kind": "unsupported", "class": qualified_name(type(value))}


def _tensor_fact(value: torch.Tensor, here: torch.device | None) -> dict[str, Any]:
    if type(value) not in (torch.Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_conj() or value.is_neg():
        return _unsupported(value)
    return {
        "kind": "tensor",
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": value.device.type,
        "here": value.device == here,
        "sizes": [[int(size), int(size)] for size in value.shape],
        "layouts": [layout_of(value)],
    }
