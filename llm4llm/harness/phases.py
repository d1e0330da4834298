"""The phase of each root forward: from cache state and position inside the driver call, never from the number of query tokens.

Rules, in the order in which they are tried:

1. A driver call that is one forward (or any method that does not generate) is `forward` if it gets no cache, `prefill` if every cache that
   it gets is empty and `decode` otherwise. A method whose name says that it encodes gives `encode` instead of `forward`.
2. In a driver call that generates (`generate`, `sample…`, `loop`, …) the first root forward is `prefill`, whatever an earlier call left in
   the cache.
3. A later one is `prefill` too if a cache that was filled earlier in this driver call is empty again (a new sequence), or while the cache
   is still shorter than the prompt and the forward's own ids are the prompt's next ids (chunked prefill, also a last chunk of one token).
   Else it is `decode`, however many tokens it takes (speculative verification, whole sequences without a cache).
4. What the driver enters outside the root's own forward (an encoder, a vision tower) is `encode`. If the root's own forward is known never
   to run in this driver call (a hand-written `generate` that calls the layers itself), an instance's first entry is `prefill` and later
   ones are `decode`.
5. Whatever runs inside one of these inherits its phase.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from llm4llm.harness.values import is_object, tensors

Phase = Literal["prefill", "decode", "encode", "forward"]

_GENERATES = ("generat", "sample", "complet", "chat", "loop", "stream", "translate", "transcribe")
_CACHE_METHODS = ("update", "append", "crop", "reorder_cache", "advance", "reset")
_LENGTHS = ("length", "len", "seq_len", "seen_tokens", "_seen_tokens", "seqlen_offset", "offset", "pos", "position", "cur_len", "size")


@dataclass(frozen=True)
class Occupancy:
    """What a cache holds: `length` in tokens, None where the cache does not say."""

    empty: bool
    length: int | None


def _asked(value: object, name: str) -> Any:
    """The answer of a method without arguments (or an attribute); None if there is none or it can't answer."""
    try:
        found = getattr(value, name, None)
        return found() if callable(found) else found
    except Exception:  # caches refuse questions that do not fit their kind of layer
        return None


def _attributes(value: object) -> dict[str, Any]:
    named = {slot: getattr(value, slot) for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ()) if hasattr(value, slot)}
    return {**named, **getattr(value, "__dict__", {})}


def _holds_nothing(value: object) -> bool:
    """True if no tensor below `value` holds anything but zeros (preallocated caches start as zeros)."""
    found = [tensor for tensor in tensors(value) if tensor.numel()]
    return not any(bool(torch.count_nonzero(tensor)) for tensor in found if tensor.device.type != "meta")


def _is_nested_states(value: object) -> bool:
    """True for the tuple style: one entry per layer, each a tuple, list or dict of tensors (or None)."""
    if not isinstance(value, (list, tuple)) or not value:
        return False
    groups = [item for item in value if item is not None]
    return bool(groups) and all(isinstance(item, (list, tuple, dict)) and bool(tensors(item)) for item in groups)


def _is_state_object(value: object) -> bool:
    if isinstance(value, (nn.Module, torch.Tensor, Mapping)) or not (is_object(value) or hasattr(type(value), "__slots__")):
        return False
    if callable(getattr(value, "get_seq_length", None)) or hasattr(value, "has_previous_state"):
        return True
    fields = _attributes(value)
    holds = any(isinstance(item, (torch.Tensor, list, dict, tuple)) or item is None for item in fields.values())
    changes = any(callable(getattr(type(value), name, None)) for name in _CACHE_METHODS) or any(name in fields for name in _LENGTHS)
    return holds and changes


def occupancy(value: object) -> Occupancy | None:
    """What a cache-like argument holds; None if `value` is no cache. Recognised by behaviour, never by the argument's name."""
    try:
        return _occupancy(value)
    except Exception:  # an argument of the user's own that can't be looked at must not end the user's call
        return None


def _occupancy(value: object) -> Occupancy | None:
    if _is_nested_states(value):
        found = tensors(value)
        filled = [tensor for tensor in found if tensor.numel()]
        length = next((tensor.shape[-2] for tensor in filled if tensor.dim() == 4), None)
        return Occupancy(empty=not filled, length=length if filled else 0)
    if not _is_state_object(value):
        return None
    length = _asked(value, "get_seq_length")
    if length is not None:
        return Occupancy(empty=int(length) == 0, length=int(length))
    previous = _asked(value, "has_previous_state")
    if isinstance(previous, bool):
        return Occupancy(empty=not previous, length=None if previous else 0)
    fields = _attributes(value)
    for name in _LENGTHS:
        counted = fields.get(name)
        if isinstance(counted, int) and not isinstance(counted, bool):
            return Occupancy(empty=counted == 0, length=counted)
    nothing = _holds_nothing(value)
    return Occupancy(empty=nothing, length=0 if nothing else None)


def token_ids(args: Iterable[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The integer tensor of rank 1 or 2 that holds token ids among the arguments of a call; named ones first, masks never."""

    def fits(value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32) and value.dim() in (1, 2)

    named = {key: value for key, value in kwargs.items() if fits(value) and "mask" not in key and "position" not in key}
    likely = [value for key, value in named.items() if "ids" in key or "input" in key or "token" in key]
    # decoder ids come before encoder ids: the cache counts decoder tokens
    decoder = [value for key, value in named.items() if "decoder" in key]
    return next(iter([*decoder, *likely, *filter(fits, args), *named.values()]), None)


@dataclass
class PhaseTracker:
    """Phases of the root forwards of one driver call, in the order in which they run."""

    method: str
    prompt: torch.Tensor | None = None
    root_runs: bool = True  # False: known from an earlier replay that the root's own forward never runs
    root_calls: int = 0
    outside_calls: int = 0
    _consumed: int = 0
    _filled: set[str] = field(default_factory=set)
    _entered: set[int] = field(default_factory=set)

    @classmethod
    def for_call(cls, root: nn.Module, method: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> "PhaseTracker":
        """A tracker for a driver call with these arguments."""
        # an encoder's ids say nothing about the length of the decoder's cache
        crossed = bool(getattr(getattr(root, "config", None), "is_encoder_decoder", False))
        return cls(method, None if crossed or method in ("forward", "loop") else token_ids(args, kwargs))

    @property
    def generates(self) -> bool:
        name = self.method.lower()
        return name not in ("forward", "__call__") and any(part in name for part in _GENERATES)

    @property
    def _plain(self) -> Phase:
        return "encode" if "encode" in self.method.lower() else "forward"

    def root_phase(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Phase:
        """The phase of the root forward that starts now with these arguments."""
        named = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
        caches = {key: held for key, value in named.items() if (held := occupancy(value)) is not None}
        first, self.root_calls = self.root_calls == 0, self.root_calls + 1
        restarted = [held.empty for key, held in caches.items() if key in self._filled]
        self._filled.update(key for key, held in caches.items() if not held.empty)
        if not self.generates:
            if not caches:
                return self._plain
            return "prefill" if all(held.empty for held in caches.values()) else "decode"
        lengths = [held.length for held in caches.values() if held.length is not None]
        before = max(lengths, default=self._consumed)
        ids = token_ids(args, kwargs)
        chunk = self._continues_prompt(ids, before)
        self._consumed = before + (ids.shape[-1] if ids is not None else 1)
        if first or chunk or (restarted and all(restarted)):
            return "prefill"
        return "decode"

    def outside_phase(self, module: nn.Module) -> Phase:
        """The phase of a module that the driver enters outside the root's own forward."""
        self.outside_calls += 1
        if not self.generates:
            return self._plain
        if self.root_runs:
            return "encode"
        again = id(module) in self._entered
        self._entered.add(id(module))
        return "decode" if again else "prefill"

    def _continues_prompt(self, ids: torch.Tensor | None, before: int) -> bool:
        if ids is None or self.prompt is None or before >= self.prompt.shape[-1]:
            return False
        expected = self.prompt.reshape(-1, self.prompt.shape[-1])[0, before : before + ids.shape[-1]]
        row = ids.reshape(-1, ids.shape[-1])[0]
        return row.shape == expected.shape and torch.equal(row.to(expected), expected)
