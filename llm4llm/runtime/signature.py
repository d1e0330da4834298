"""What a module is, as a hash: two modules with equal signatures compute the same function of inputs and weights.

An attribute that only numbers an instance among its siblings (`layer_idx` and the like) must not split a family of decoder layers, while a
sliding window, a soft cap or a flag must. Both are plain attributes, so numbering is told by name: an integer whose name says index or id
of a layer, block, stage, expert or group, or says nothing but index.
"""

import enum
import functools
import hashlib
import json
import re
import types
from typing import Any

import torch
from torch import nn

_NUMBERING = re.compile(r"_?(?:(?:layer|block|stage|expert|group|level)s?_?(?:idx|index|id|number|num|no|i)|idx|index|id|number|i)")
# Set by loaders and wrappers, different between two equal models, and without influence on what forward computes.
_SKIPPED = frozenset(
    (
        *("forward", "_old_forward", "_compiled_call_impl", "_replicate_for_data_parallel"),
        *("_hf_hook", "_is_hf_initialized", "hf_device_map", "generation_config", "name_or_path", "warnings_issued"),
    )
)
_SKIPPED_CONFIGURATION = frozenset(["_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "architectures"])
_MAX_ITEMS, _MAX_DEPTH = 256, 4


def family_signature(module: nn.Module) -> str:
    """sha256 (hex) over class, plain attributes, configuration, parameter shapes and the submodules' own signatures."""
    return _Signer().sign(module)


def family_signatures(model: nn.Module) -> dict[str, str]:
    """Path below the model ("" is the model itself) → family signature, in one pass."""
    signer = _Signer()
    return {path: signer.sign(module) for path, module in model.named_modules(remove_duplicate=False)}


def root_fingerprint(model: nn.Module) -> str:
    """sha256 (hex) over the whole tree; equal for two loads of one model, independent of the weights' values and devices."""
    return hashlib.sha256(b"root:" + family_signature(model).encode()).hexdigest()


def configuration_hash(model: nn.Module) -> str | None:
    """sha256 (hex) of the model's configuration object; None if it has none."""
    config = vars(model).get("config")
    return None if config is None else _digest(_Signer().plain(config, 0))


def layer_index(module: nn.Module) -> int | None:
    """The number that a module carries among its siblings: its own, or the only one found below it; None if there is none or several."""
    own = _numbers(module)
    if len(own) == 1:
        return own.pop()
    found = {number for part in module.modules() for number in _numbers(part)}
    return found.pop() if len(found) == 1 else None


def qualified_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _numbers(module: nn.Module) -> set[int]:
    return {value for key, value in vars(module).items() if is_numbering(key, value)}


def is_numbering(name: str, value: object) -> bool:
    """True for an attribute that tells an instance from its siblings and nothing else."""
    return type(value) is int and value >= 0 and _NUMBERING.fullmatch(name) is not None


@functools.cache
def module_attributes() -> frozenset[str]:
    """Names of the attributes that every nn.Module has."""
    return frozenset(vars(nn.Module()))


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class _Signer:
    """Signs modules bottom-up, each module and each configuration object once."""

    def __init__(self) -> None:
        self._signed: dict[int, str] = {}
        self._configurations: dict[int, str] = {}
        self._under_way: set[int] = set()

    def sign(self, module: nn.Module) -> str:
        key = id(module)
        if key in self._signed:
            return self._signed[key]
        if key in self._under_way:  # a module that holds itself
            return "cycle"
        self._under_way.add(key)
        signature = _digest(
            {
                "class": qualified_name(type(module)),
                "plain": self._attributes(module),
                "parameters": [[name, self.plain(item, 0)] for name, item in module._parameters.items()],
                "buffers": [[name, self.plain(item, 0)] for name, item in module._buffers.items()],
                "modules": [[name, None if item is None else self.sign(item)] for name, item in module._modules.items()],
            }
        )
        self._under_way.discard(key)
        self._signed[key] = signature
        return signature

    def _attributes(self, module: nn.Module) -> list[Any]:
        skipped = module_attributes() | _SKIPPED
        found = [
            [key, self.plain(value, 0)]
            for key, value in vars(module).items()
            if key not in skipped and not is_numbering(key, value) and not isinstance(value, (nn.Module, torch.device))
        ]
        return sorted(found, key=lambda pair: str(pair[0]))

    def plain(self, value: Any, depth: int) -> Any:
        """JSON-able facts of a value; of objects only the class, unless they carry a configuration."""
        if value is None or isinstance(value, (bool, int, float, str, bytes, complex)):
            return [type(value).__name__, repr(value)]
        if isinstance(value, torch.Tensor):
            return ["tensor", qualified_name(type(value)), list(map(int, value.shape)), str(value.dtype)]
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return ["torch", str(value)]
        if isinstance(value, enum.Enum):
            return ["enum", qualified_name(type(value)), value.name]
        if isinstance(value, type):
            return ["type", qualified_name(value)]
        if isinstance(value, functools.partial):
            return ["partial", *(self.plain(item, depth + 1) for item in (value.func, value.args, value.keywords))]
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
            return ["function", f"{getattr(value, '__module__', None)}.{value.__qualname__}"]
        return self._composite(value, depth)

    def _composite(self, value: Any, depth: int) -> Any:
        name = qualified_name(type(value))
        if isinstance(value, (list, tuple, dict, set, frozenset)):
            if len(value) > _MAX_ITEMS or depth >= _MAX_DEPTH:
                return [name, len(value)]
            if isinstance(value, dict):
                plain = {key: item for key, item in value.items() if not isinstance(item, nn.Module)}
                pairs = [[self.plain(key, depth + 1), self.plain(item, depth + 1)] for key, item in plain.items()]
                return [name, sorted(pairs, key=json.dumps)]
            items = [self.plain(item, depth + 1) for item in value]
            return [name, sorted(items, key=json.dumps) if isinstance(value, (set, frozenset)) else items]
        if callable(getattr(type(value), "to_dict", None)):
            return [name, self._configuration(value)]
        return ["object", name]

    def _configuration(self, config: Any) -> str:
        if id(config) not in self._configurations:
            content = config.to_dict()
            for key in ("_attn_implementation", "_experts_implementation"):  # chosen at load time and left out of to_dict
                content.setdefault(key, getattr(config, key, None))
            content = {key: item for key, item in content.items() if key not in _SKIPPED_CONFIGURATION}
            self._configurations[id(config)] = _digest(self.plain(content, 0))
        return self._configurations[id(config)]
