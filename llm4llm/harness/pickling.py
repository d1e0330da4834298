"""Pickles for a task folder: classes of the script by definition, modules without hooks, parts of the task's module by path.

`torch.save` and `torch.load` do the tensors; this module is handed to them as `pickle_module`.
"""

import collections
import copyreg
import importlib
import pickle
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

MOVED_BY_DISPATCH = frozenset({"_hf_hook", "_old_forward"})  # accelerate moves the forward here and puts a wrapper in its place


class NotCarried(Exception):
    """Something that can't be rebuilt in another process; the message names it and says why."""


class Definitions(Protocol):
    """Who is told of each class and function that a pickle names."""

    def note(self, thing: type | types.FunctionType | types.ModuleType) -> None:
        """Raises NotCarried for what has no definition that can be carried."""


class Rebuilt(Protocol):
    """Where the script's own modules are found again."""

    def module(self, name: str) -> types.ModuleType | None:
        """The rebuilt module, or None for modules that are imported as usual."""


class NoDefinitions:
    """Takes every definition as importable: for values that stay on one machine, in processes that rebuilt the same definitions."""

    def note(self, thing: type | types.FunctionType | types.ModuleType) -> None:
        return None

    def module(self, name: str) -> types.ModuleType | None:
        return None


def module_part(path: str) -> nn.Module:
    """Stands in a pickle for a submodule of the task's module; the unpickler puts the real look-up in its place."""
    raise pickle.UnpicklingError(f"{path!r} is part of a task's module, which was not given")


def parameter_part(path: str) -> nn.Parameter:
    """Stands in a pickle for a parameter of the task's module."""
    raise pickle.UnpicklingError(f"{path!r} is part of a task's module, which was not given")


def generator(device: str, state: torch.Tensor) -> torch.Generator:
    """A generator in the state that another one had."""
    twin = torch.Generator(device=device)
    twin.set_state(state)
    return twin


def bound(function: types.FunctionType, owner: Any) -> types.MethodType:
    """A method that was made by hand: pickle only knows methods that their owner's class has."""
    return types.MethodType(function, owner)


@dataclass(frozen=True)
class _Pickles:
    """What torch takes for a pickle module."""

    Pickler: Any
    Unpickler: Any
    __name__: str = "llm4llm.harness.pickling"


def save(value: Any, path: Path | Any, definitions: Definitions | None = None, module: nn.Module | None = None) -> None:
    """Write `value` to a path or binary stream. With `module`, its parts are written as references.

    Raises NotCarried with the name of what can't be written.
    """
    told: Definitions = definitions or NoDefinitions()
    modules = {id(part): name for name, part in module.named_modules()} if module is not None else {}
    parameters = {id(part): name for name, part in module.named_parameters()} if module is not None else {}

    class Pickler(pickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if id(thing) in modules:
                return module_part, (modules[id(thing)],)
            if id(thing) in parameters:
                return parameter_part, (parameters[id(thing)],)
            return _reduced(thing, told)

    try:
        torch.save(value, path, pickle_module=_Pickles(Pickler, None), pickle_protocol=pickle.HIGHEST_PROTOCOL)
    except NotCarried:
        raise
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, ValueError, RecursionError, NotImplementedError) as error:
        raise NotCarried(f"it can't be written to a file: {error}") from error


def _reduced(thing: Any, definitions: Definitions) -> Any:
    """How `thing` is written if it is no part of the task's module; NotImplemented leaves it to pickle."""
    if isinstance(thing, (type, types.FunctionType)):
        definitions.note(thing)
        return NotImplemented
    if isinstance(thing, types.ModuleType):
        definitions.note(thing)
        return importlib.import_module, (thing.__name__,)
    if isinstance(thing, torch.jit.ScriptModule):
        raise NotCarried(f"{type(thing).__name__} is compiled TorchScript, which has no Python forward to replace")
    if isinstance(thing, nn.Module):
        return _reduced_module(thing)
    if isinstance(thing, types.MethodType) and not isinstance(thing.__self__, type):
        own = getattr(type(thing.__self__), thing.__func__.__name__, None)
        return NotImplemented if own is thing.__func__ else (bound, (thing.__func__, thing.__self__))
    if isinstance(thing, torch.Generator):
        return generator, (str(thing.device), thing.get_state())
    return NotImplemented


def _reduced_module(module: nn.Module) -> Any:
    """A module by its class and attributes, with the hooks gone; modules with a pickle protocol of their own keep it."""
    kind = type(module)
    own_protocol = (
        kind.__reduce_ex__ is not object.__reduce_ex__
        or kind.__reduce__ is not object.__reduce__
        or getattr(kind, "__getstate__", None) not in (getattr(object, "__getstate__", None), getattr(nn.Module, "__getstate__", None))
    )
    if own_protocol:
        return NotImplemented
    return copyreg.__newobj__, (kind,), without_hooks(module)  # type: ignore[attr-defined]


def without_hooks(module: nn.Module) -> dict[str, Any]:
    """A module's own attributes (a new dict) as they are without hooks and without a wrapper that accelerate put in."""
    state = {key: item for key, item in vars(module).items() if key != "_compiled_call_impl"}
    for key in [key for key in state if "_hooks" in key]:
        state[key] = collections.OrderedDict()
    if "_old_forward" in state:
        for key in ("forward", *MOVED_BY_DISPATCH):
            state.pop(key, None)
    return state


def load(path: Path | Any, rebuilt: Rebuilt | None = None, module: nn.Module | None = None, device: str | None = None) -> Any:
    """Read what `save` wrote. `module` must be given if it was given to `save`; `device` moves tensors there."""
    found_in: Rebuilt = rebuilt or NoDefinitions()
    special: dict[tuple[str, str], Callable[[str], Any]] = {}
    if module is not None:
        parameters = dict(module.named_parameters())
        special = {(__name__, "module_part"): module.get_submodule, (__name__, "parameter_part"): parameters.__getitem__}

    class Unpickler(pickle.Unpickler):
        def find_class(self, module_name: str, name: str) -> Any:
            if (module_name, name) in special:
                return special[module_name, name]
            home = found_in.module(module_name)
            if home is None:
                return super().find_class(module_name, name)
            found: Any = home
            for part in name.split("."):
                found = getattr(found, part)
            return found

    return torch.load(path, map_location=device, pickle_module=_Pickles(None, Unpickler), weights_only=False)
