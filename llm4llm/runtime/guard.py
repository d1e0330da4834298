"""The guard: a proven domain turned into closures that check one call in microseconds, on the host, without touching tensor values."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .observation import autocast_dtype, laid_out, layout_of, module_device, needs_grad
from .signature import layer_index
from .state import compile_state

Guard = Callable[[tuple[Any, ...], dict[str, Any]], str | None]
Check = Callable[[Any], str | None]
_MAX_BINDINGS = 32


def compile_guard(domain: dict[str, Any], module: nn.Module) -> Guard:
    """A function of (args, kwargs) that is None inside the domain, else a short reason code; no device synchronisation."""
    alternatives = [_Alternative(facts, module) for facts in domain["alternatives"]]
    owner = weakref.ref(module)
    bindings: dict[tuple[Any, ...], list[_Alternative]] = {}

    def guard(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        binding = (len(args), *kwargs)
        candidates = bindings.get(binding)
        if candidates is None:
            candidates = [one for one in alternatives if one.binds(args, kwargs)]
            if len(bindings) < _MAX_BINDINGS:
                bindings[binding] = candidates
        if not candidates:
            return "binding"
        grad = torch.is_grad_enabled()
        live = owner()
        if live is None:
            return "module_gone"
        if grad and needs_grad(live, [value for _, value in laid_out(args, kwargs)]):
            return "grad_enabled"
        training = live.training
        best, reason = -1, "binding"
        for alternative in candidates:
            depth, refusal = alternative.refusal(args, kwargs, training)
            if refusal is None:
                return None
            if depth > best:
                best, reason = depth, refusal
        return reason

    return guard


class _Alternative:
    """One regime of the domain. Checks run in the order in which arguments are laid out."""

    def __init__(self, facts: dict[str, Any], module: nn.Module) -> None:
        self._positional: int = facts["positional"]
        self._keywords: tuple[str, ...] = tuple(facts["keywords"])
        self._names = frozenset(self._keywords)
        ambient = facts["ambient"]
        self._training: bool = ambient["training"]
        self._inference: bool = ambient["inference"]
        self._grad: bool = ambient["grad"]
        self._autocast: list[tuple[str, str | None]] = list(ambient["autocast"].items())
        here = module_device(module)
        index = layer_index(module)
        paths = [path for path, _ in facts["slots"]]
        self._checks = [_check(fact, here, index) for _, fact in facts["slots"]]
        # (slot, expected length) of a sequence, (slot, keys) of a dict: items are appended in this order
        self._containers = [(at, fact.get("keys")) for at, (_, fact) in enumerate(facts["slots"]) if fact["kind"] in ("sequence", "dict")]
        self._varying = [at for at, path in enumerate(paths) if any(path == member for group in facts["equal"] for member, _ in group)]
        groups = [[(self._varying.index(paths.index(path)), axis) for path, axis in group] for group in facts["equal"]]
        self._equal = [(group[0][0], group[0][1], group[1:]) for group in groups]
        with_device = [at for at, (_, fact) in enumerate(facts["slots"]) if fact["kind"] == "tensor" and fact["here"]]
        self._together = with_device if here is None and len(with_device) > 1 else []

    def binds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return len(args) == self._positional and kwargs.keys() == self._names

    def refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> tuple[int, str | None]:
        """How many checks passed, and the reason code of the one that did not (None: inside)."""
        if training is not self._training:
            return 0, "training"
        if self._grad:
            return 0, "grad_enabled"
        if torch.is_inference_mode_enabled() is not self._inference:
            return 0, "inference_mode"
        for device, dtype in self._autocast:
            if torch.is_autocast_enabled(device) if dtype is None else autocast_dtype(device) != dtype:
                return 0, "autocast"
        values = [*args, *[kwargs[name] for name in self._keywords]] if self._keywords else list(args)
        checks = self._checks
        if self._containers:
            refusal = self._unpack(values)
            if refusal is not None:
                return 1, refusal
        depth = 1
        for value, check in zip(values, checks, strict=True):
            refusal = check(value)
            if refusal is not None:
                return depth, refusal
            depth += 1
        return depth, self._related(values)

    def _unpack(self, values: list[Any]) -> str | None:
        """Append the items of every container, in the layout's order; the containers themselves are checked on the way."""
        for at, keys in self._containers:
            refusal = self._checks[at](values[at])
            if refusal is not None:
                return refusal
            values += values[at] if keys is None else [values[at][key] for key in keys]
        return None

    def _related(self, values: list[Any]) -> str | None:
        if self._equal:
            shapes = [values[at].shape for at in self._varying]
            for first, first_axis, others in self._equal:
                size = shapes[first][first_axis]
                for other, axis in others:
                    if shapes[other][axis] != size:
                        return "unequal_sizes"
        if self._together:
            device = values[self._together[0]].device
            if any(values[at].device != device for at in self._together):
                return "device"
        return None


def _check(fact: dict[str, Any], here: torch.device | None, index: int | None) -> Check:
    kind = fact["kind"]
    if kind == "tensor":
        return _tensor_check(fact, here)
    if kind == "object":
        matches = compile_state(fact, index)
        return lambda value: None if matches(value) else "object_state"
    return _CHECKS[kind](fact)


def _value_check(fact: dict[str, Any]) -> Check:
    wanted: Any = fact["value"]
    if wanted is None or isinstance(wanted, bool):
        return lambda value: None if value is wanted else "argument"
    return lambda value: None if isinstance(value, str) and value == wanted else "argument"


def _int_check(fact: dict[str, Any]) -> Check:
    low, high = fact["range"]
    return lambda value: None if type(value) is int and low <= value <= high else "argument"


def _text_check(fact: dict[str, Any]) -> Check:
    name, wanted = fact["type"], fact["value"]
    return lambda value: None if type(value).__name__ == name and repr(value) == wanted else "argument"


def _sequence_check(fact: dict[str, Any]) -> Check:
    kind: Any = {"list": list, "tuple": tuple}[fact["type"]]
    length: int = fact["length"]
    return lambda value: None if type(value) is kind and len(value) == length else "structure"


def _dict_check(fact: dict[str, Any]) -> Check:
    keys = dict.fromkeys(fact["keys"]).keys()
    return lambda value: None if type(value) is dict and value.keys() == keys else "structure"


def _named_check(fact: dict[str, Any]) -> Check:
    wanted = fact["name"]

    def check(value: Any) -> str | None:
        kind = value if hasattr(value, "__qualname__") else type(value)
        return None if f"{kind.__module__}.{kind.__qualname__}" == wanted else "argument"

    return check


_CHECKS: dict[str, Callable[[dict[str, Any]], Check]] = {
    "value": _value_check,
    "int": _int_check,
    "text": _text_check,
    "sequence": _sequence_check,
    "dict": _dict_check,
    "named": _named_check,
    "unsupported": lambda fact: lambda value: "unsupported_argument",
}


def _tensor_check(fact: dict[str, Any], here: torch.device | None) -> Check:
    dtype: torch.dtype = getattr(torch, fact["dtype"])
    on_device = _device_check(fact, here)
    fixed = torch.Size([low for low, _ in fact["sizes"]])
    varies = any(low != high for low, high in fact["sizes"])
    ranges = [(axis, low, high) for axis, (low, high) in enumerate(fact["sizes"])] if varies else None
    rank, layouts = len(fact["sizes"]), frozenset(fact["layouts"])
    dense, only_dense = "contiguous" in layouts, layouts == {"contiguous"}
    plain, parameter = torch.Tensor, nn.Parameter

    def check(value: Any) -> str | None:
        kind = type(value)
        if kind is not plain and kind is not parameter:
            return "type"
        if value.dtype is not dtype:
            return "dtype"
        if not on_device(value.device):
            return "device"
        shape = value.shape
        if ranges is None:
            if shape != fixed:
                return "shape"
        else:
            if len(shape) != rank:
                return "shape"
            for axis, low, high in ranges:  # by index: iterating over a torch.Size is slower
                if not low <= shape[axis] <= high:
                    return "shape"
        if dense and value.is_contiguous():
            return None
        return "strides" if only_dense or layout_of(value) not in layouts else None

    return check


def _device_check(fact: dict[str, Any], here: torch.device | None) -> Callable[[torch.device], bool]:
    kind: str = fact["device"]
    if not fact["here"]:
        return lambda device: device.type == kind and device != here
    if here is None:
        return lambda device: device.type == kind
    return here.__eq__ if here.type == kind else lambda device: False
