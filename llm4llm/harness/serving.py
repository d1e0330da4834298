"""A candidate at work on one instance of the task's module: prepare, accepts, forward, and what each call did besides."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from llm4llm.harness.ambient import Ambient
from llm4llm.harness.calls import reweight, seed
from llm4llm.harness.fences import Fences, fenced
from llm4llm.harness.oracle import alias_pairs, outcome, reach_of, rebound
from llm4llm.harness.portrait import as_bytes, leaf, portrait, same_bits, storages
from llm4llm.harness.values import kept_by, leaves, replaced, restore, snapshot, tensors
from llm4llm.harness.watchtower import ModuleRecord, Spy, Violation, Watchtower, process_state, state_changes

_EARLIER = 12  # results that stay alive to see whether a later call writes into them
_EXACT_TYPES = (torch.Tensor, nn.Parameter)

Pool = dict[str, dict[str, Any]]  # calls by name: args, kwargs, kept, rng, scale


def scaled(call: dict[str, Any], factor: float) -> tuple[Any, Any, Any]:
    """Fresh copies of a pooled call's inputs with its free tensors multiplied in place."""
    args, kwargs, kept = snapshot((call["args"], call["kwargs"], call["kept"]))
    if factor != 1.0:
        listed = [item for _, item in leaves({"args": args, "kwargs": kwargs}) if isinstance(item, torch.Tensor)]
        with torch.no_grad():
            for tensor in {id(listed[position]): listed[position] for position in call["scale"]}.values():
                contained = [slice(0, 1) if step == 0 and size > 1 else slice(None) for step, size in zip(tensor.stride(), tensor.shape)]
                tensor[tuple(contained)].mul_(factor)
    return args, kwargs, kept


class Server:
    """One candidate with one configuration on a module of its own."""

    def __init__(self, candidate: ModuleType, module: nn.Module, config: dict[str, Any], ambient: Ambient) -> None:
        self.module = module
        self.state: Any = None
        self._config = config
        self._candidate = candidate
        self._ambient = ambient
        self._accepts: Callable[..., Any] | None = getattr(candidate, "accepts", None)
        self._live: tuple[Any, Any] | None = None
        self._earlier: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        self._weights: ModuleRecord | None = None

    def prepare(self) -> list[Violation]:
        """Run the candidate's prepare under the task's surroundings; what it changed."""
        record = ModuleRecord(self.module)
        prepare = getattr(self._candidate, "prepare", None)
        before, rng = process_state(), torch.get_rng_state()
        if prepare is not None:
            with self._ambient.applied(), torch.no_grad():
                self.state = prepare(self.module, **self._config)
        changed = state_changes(before, process_state())
        if not torch.equal(rng, torch.get_rng_state()):
            # packing may sample; what follows must not depend on it
            torch.set_rng_state(rng)
        self._weights = ModuleRecord(self.module)
        return [*changed, *record.changes()]

    def reweight(self, factor: float) -> list[Violation]:
        """Change every floating weight in place, as loading a state dict does, and prepare again."""
        reweight(self.module, factor)
        self.state = None
        return self.prepare()

    def accepted(self, args: Any, kwargs: Any) -> bool:
        if self._accepts is None:
            return True
        answer = self._accepts(self.module, self.state, *args, **kwargs)
        if not isinstance(answer, bool):
            raise TypeError(f"accepts returned a {type(answer).__name__} instead of True or False")
        return answer

    def forward(self, args: Any, kwargs: Any) -> Any:
        return self._candidate.forward(self.module, self.state, *args, **kwargs)

    def call(
        self, call: dict[str, Any], spy: Spy, *, refill: bool = False, fences: Fences | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Serve one call with everything that is observed of it, as facts and tensor bytes."""
        module = self.module
        with self._ambient.applied():
            args, kwargs, kept = scaled(call, 1.0)
            if refill and self._live is not None:
                args, kwargs = _into(self._live, (args, kwargs))
            elif fences is not None:
                args, kwargs = fences.around_arguments(args, kwargs, tensors((args, kwargs, kept)))
            restore(module, kept)
            before = {path: tensor.detach().clone() for path, tensor in _reachable(args, kwargs, module) if type(tensor) in _EXACT_TYPES}
            reach = reach_of(args, kwargs, module)
            state, spy.calls = process_state(), 0
            seed(call["rng"])
            rng = torch.get_rng_state()
            told = portrait(_given(args, kwargs, module))[0]
            if not self.accepted(args, kwargs):
                seen = state_changes(state, process_state())
                tree, found = portrait(_given(args, kwargs, module))
                draws = not torch.equal(rng, torch.get_rng_state())
                if tree != told or draws or rebound(found, reach) or _packed(found, before)[1]:
                    seen.append(Violation("accepts_effect", "accepts changed what the original is called with; it may only look"))
                return {"declined": True, "violations": [one.facts() for one in seen]}, []
            with fenced(fences):
                result = self.forward(args, kwargs)
            _finish()
            seen = state_changes(state, process_state())
            draws = not torch.equal(rng, torch.get_rng_state())
            if spy.calls:
                seen.append(Violation("fallback", "answered through the module's own forward; decline such calls in accepts instead"))
            if fences is not None and (said := fences.broken()) is not None:
                seen.append(Violation("out_of_bounds", said))
            parts = outcome(result, args, kwargs, kept_by(module))
        tree, found = portrait(parts)
        seen += self._reuse(result, reach)
        self._live = (args, kwargs)
        facts, blobs = _packed(found, before)
        return {
            "declined": False,
            "tree": tree,
            "leaves": facts,
            "aliases": sorted(alias_pairs(found, reach)),
            "rebound": sorted(rebound(found, reach)),
            "draws": draws,
            "violations": [one.facts() for one in seen],
        }, blobs

    def quick(self, call: dict[str, Any]) -> tuple[bool, list[torch.Tensor]]:
        """Serve one call without looking at what it does besides: whether it was accepted, and the tensors of the result."""
        with self._ambient.applied():
            args, kwargs, kept = scaled(call, 1.0)
            restore(self.module, kept)
            seed(call["rng"])
            if not self.accepted(args, kwargs):
                return False, []
            result = self.forward(args, kwargs)
            _finish()
        return True, [tensor for _, tensor in portrait({"result": result})[1] if type(tensor) in _EXACT_TYPES]

    def weight_changes(self) -> list[Violation]:
        """Weights that calls changed since `prepare`."""
        return self._weights.changes(attributes=False) if self._weights is not None else []

    def _reuse(self, result: Any, reach: dict[str, torch.Tensor]) -> list[Violation]:
        """Whether this result lies in the memory of an earlier one that is still alive, or the call wrote into one."""
        seen = []
        found = [tensor for _, tensor in portrait({"result": result})[1] if type(tensor) in _EXACT_TYPES]
        reachable = {place for _, place in storages(list(reach.values()))}
        held = {place for results, _ in self._earlier for _, place in storages(results)}
        if any(place in held and place not in reachable for _, place in storages(found)):
            seen.append(Violation("result_reused", "the result lies in the memory of an earlier result that is still in use"))
        for results, copies in self._earlier:
            if not all(same_bits(then, now) for then, now in zip(copies, results, strict=True)):
                seen.append(Violation("result_reused", "a later call changed an earlier result"))
                break
        own = [
            tensor
            for _, tensor in [(place, found[index]) for index, place in storages(found)]
            if tensor.untyped_storage().data_ptr() not in reachable
        ]
        if own:
            self._earlier = [*self._earlier[1 - _EARLIER :], (own, [tensor.detach().clone() for tensor in own])]
        return seen


def _into(live: tuple[Any, Any], fresh: tuple[Any, Any]) -> tuple[Any, Any]:
    """The fresh arguments, written into the tensors of an earlier call where they fit: same addresses, other values."""
    earlier = dict(_tensors_of(live))
    swapped: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for path, tensor in _tensors_of(fresh):
            old = earlier.get(path)
            same = old is not None and old.shape == tensor.shape and old.dtype == tensor.dtype and old.stride() == tensor.stride()
            if old is not None and same and 0 not in tensor.stride() and not old.is_inference():
                swapped[id(tensor)] = old.copy_(tensor)
    args, kwargs = replaced(fresh, lambda tensor: swapped.get(id(tensor), tensor))
    return args, kwargs


def _tensors_of(value: Any) -> list[tuple[str, torch.Tensor]]:
    return [(path, item) for path, item in leaves(value) if type(item) is torch.Tensor and item.numel()]


def _reachable(args: Any, kwargs: Any, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from portrait(_given(args, kwargs, module))[1]


def _given(args: Any, kwargs: Any, module: nn.Module) -> dict[str, Any]:
    return {"args": args, "kwargs": kwargs, "kept": kept_by(module)}


def _packed(found: list[tuple[str, torch.Tensor]], before: dict[str, torch.Tensor]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Facts of each tensor, and the bytes of those that are not as they were before the call."""
    facts: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for path, tensor in found:
        known = before.get(path)
        exact = type(tensor) in _EXACT_TYPES
        unchanged = exact and known is not None and known.shape == tensor.shape and known.dtype == tensor.dtype and same_bits(known, tensor)
        one = leaf(path, tensor, values=not unchanged)
        facts.append({**one.facts(), "blob": None if one.values is None else len(blobs)})
        if one.values is not None:
            blobs.append(as_bytes(one.values))
    return facts, blobs


def _finish() -> None:
    """Wait for the device, so that an error belongs to this call."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def poisoned(on: bool) -> Iterator[None]:
    """Memory that torch hands out uninitialised holds NaN (or the largest integer) inside."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch._C._get_deterministic_fill_uninitialized_memory()
    # the public function imports the compiler, which takes a second
    torch._C._set_deterministic_algorithms(on, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(on)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])
        torch._C._set_deterministic_fill_uninitialized_memory(fill)


def dirtied(call: dict[str, Any]) -> None:
    """Fill and free blocks of the size of each input, so that memory which is reused without being written holds NaN."""
    sizes = {tensor.numel() * tensor.element_size() for _, tensor in _tensors_of((call["args"], call["kwargs"]))}
    device = next((tensor.device for _, tensor in _tensors_of((call["args"], call["kwargs"]))), torch.device("cpu"))
    held = [torch.full((max(1, size // 4),), math.nan, device=device) for size in sizes for _ in range(3)]
    del held


def fresh_module(module: nn.Module) -> nn.Module:
    """A copy with weights of its own."""
    return copy.deepcopy(module)


__all__ = ["Pool", "Server", "Watchtower", "dirtied", "fresh_module", "poisoned", "scaled"]
