"""Take copies of what a call begins with, within bounds."""

import itertools
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from llm4llm.harness import values
from llm4llm.harness.ambient import Ambient, Randomness
from llm4llm.harness.nested import Copies, nodes
from llm4llm.harness.workload import Entry, Kept, Returned, Step

_HOST_SHARE, _HOST_LIMIT = 0.25, 4 << 30  # of the machine's memory, and at most
_DEVICE_SHARE, _FREE_SHARE = 0.10, 0.25  # of a GPU's memory over the whole run, and of what is free at the moment
_MAX_LEAVES = 20_000  # of one attribute that a module keeps
# Values of these packages are copied although they are opaque; anything else that is opaque (tokenizers, locks, files) stays where it is.
_COPYABLE = frozenset({"builtins", "collections", "datetime", "decimal", "fractions", "numpy", "pathlib", "re", "torch", "torch._C"})


class TooLarge(Exception):
    """Copies would take more memory than recording may use."""


@dataclass
class Budget:
    """Bytes that stored copies take, against what they may take."""

    host_limit: int
    host_used: int = 0
    device_used: int = 0

    @classmethod
    def of_this_machine(cls) -> "Budget":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(min(int(memory * _HOST_SHARE), _HOST_LIMIT))

    def take(self, host: int, device: int) -> None:
        """Count bytes that are about to be copied. Raises TooLarge, and counts nothing, if they are too many."""
        if self.host_used + host > self.host_limit:
            raise TooLarge(f"its inputs take {host >> 20} MiB; {(self.host_limit - self.host_used) >> 20} MiB are left for recorded inputs")
        if device:
            free, total = torch.cuda.mem_get_info()
            if self.device_used + device > total * _DEVICE_SHARE or device > free * _FREE_SHARE:
                raise TooLarge(f"its inputs take {device >> 20} MiB of GPU memory; {free >> 20} MiB are free")
        self.host_used += host
        self.device_used += device

    def give_back(self, host: int, device: int) -> None:
        self.host_used -= host
        self.device_used -= device


@dataclass
class Stored:
    """A step with the state that the module kept before it."""

    step: Step
    kept: list[Kept]
    memo: dict[int, Any]  # {id(original): (copy, original)}; holds the originals: drop it after the call
    host_bytes: int
    device_bytes: int


def stored(
    module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], budget: Budget, *, memo: dict[int, Any], previous: Step | None
) -> Stored:
    """Copies of a call's arguments and surroundings; for a first step (`previous` is None) also of what the modules keep.

    Raises values.NotReplayable or TooLarge.
    """
    args, kwargs = arguments
    kept = [_noted(holder) for holder in _holders(module, arguments)] if previous is None else []
    host, device = _bytes([args, kwargs, [item.values for item in kept]], memo)
    budget.take(host, device)
    try:
        copies = Copies(args, kwargs, [item.values for item in kept], memo=memo)
        copied_args, copied_kwargs = copies.of(args), {key: copies.of(item) for key, item in kwargs.items()}
        for item in kept:
            _copy_kept(item, copies)
    except BaseException:
        budget.give_back(host, device)
        raise
    stand_ins = {id(node): node for _, node in nodes((copied_args, copied_kwargs)) if isinstance(node, Returned)}
    randomness = Randomness.now(previous.randomness if previous is not None else None)
    step = Step(copied_args, copied_kwargs, Ambient.now(), randomness, list(stand_ins.values()))
    return Stored(step, kept, copies.memo, host, device)


def _holders(module: nn.Module, arguments: Any) -> list[nn.Module]:
    """The module itself and other models that it was handed (a draft model keeps state as well)."""
    found = {id(module): module}
    found |= {id(leaf): leaf for _, leaf in values.leaves(arguments) if isinstance(leaf, nn.Module)}
    return list(found.values())


def _noted(module: nn.Module) -> Kept:
    """What a module keeps, by reference, without what can't or shouldn't be copied."""
    kept: dict[str, dict[str, Any]] = {}
    uncopied: set[Entry] = set()
    for path, kinds in values.kept_by(module).items():
        for kind, items in kinds.items():
            chosen = kept.setdefault(path, {}).setdefault(kind, {})
            for key, item in items.items():
                if _is_copyable(item):
                    chosen[key] = item
                else:
                    uncopied.add((path, kind, key))
    return Kept(module, kept, {path: bool(getattr(part, "training", False)) for path, part in module.named_modules()}, frozenset(uncopied))


def _is_copyable(item: Any) -> bool:
    if item is None or isinstance(item, (bool, int, float, str, torch.Tensor)):
        return True
    try:
        found = list(itertools.islice(values.leaves(item), _MAX_LEAVES + 1))
    except Exception:
        return False
    return len(found) <= _MAX_LEAVES and all(
        isinstance(leaf, (torch.Tensor, nn.Module, type)) or callable(leaf) or type(leaf).__module__.partition(".")[0] in _COPYABLE
        for _, leaf in found
    )


def _copy_kept(kept: Kept, copies: Copies) -> None:
    """Replace references by copies; what turns out not to be copyable becomes uncopied."""
    failed: set[Entry] = set()
    copied: dict[str, dict[str, Any]] = {}
    for path, kinds in kept.values.items():
        for kind, items in kinds.items():
            chosen = copied.setdefault(path, {}).setdefault(kind, {})
            for key, item in items.items():
                try:
                    chosen[key] = copies.of(item)
                except Exception:
                    failed.add((path, kind, key))
    kept.values, kept.uncopied = copied, kept.uncopied | failed


def _bytes(value: Any, memo: dict[int, Any]) -> tuple[int, int]:
    """(host bytes, GPU bytes) of tensors that a copy would duplicate."""
    memory: dict[tuple[str, int], int] = {}
    known = {id(tensor) for replaced, original in memo.values() for tensor in values.tensors(original)}
    for tensor in values.tensors(value):
        if id(tensor) in known or isinstance(tensor, nn.Parameter) or tensor.layout is not torch.strided:
            continue
        place = (tensor.device.type, tensor.data_ptr() if tensor.device.type != "meta" else id(tensor))
        memory[place] = max(memory.get(place, 0), tensor.numel() * tensor.element_size())
    device = sum(count for (kind, _), count in memory.items() if kind == "cuda")
    host = sum(count for (kind, _), count in memory.items() if kind not in ("cuda", "meta"))
    return host, device
