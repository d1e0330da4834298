"""What the original does with a call, and what it would do in exact arithmetic.

The oracle is the same module with weights, inputs and every requested dtype raised to float64. Where it can't run so (a kernel without
double precision, a branch on the dtype), it runs in float32; where that fails too, the original's own result stands in and the allowance is
a number of units of precision. The verdict says which it was.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from llm4llm.harness.ambient import Ambient, dtype_name
from llm4llm.harness.calls import Call, seed
from llm4llm.harness.portrait import Leaf, Tree, leaf, plain, portrait, same_bits, storages
from llm4llm.harness.values import kept_by, replaced, restore

_RAISED = {
    torch.float64: {torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2},
    torch.float32: {torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2},
}
_COMPLEX = {torch.float64: {torch.complex64: torch.complex128}, torch.float32: {}}
# own error relative to the row at which the original and its oracle can't be the same computation
_UNRELATED = {torch.float32: 0.02, torch.float64: 0.02}
_UNRELATED_LOW = 0.3


class OutOfRange(Exception):
    """The original can't run this call; the message is its error."""


class _Raised(TorchFunctionMode):
    """Turns every floating dtype lower than `precision` that code asks for into `precision`."""

    def __init__(self, precision: torch.dtype) -> None:
        super().__init__()
        self._precision = precision
        self._low = _RAISED[precision]
        casts = {torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16, torch.Tensor.float: torch.float32}
        self._casts = {function for function, dtype in casts.items() if dtype in self._low}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._casts:
            return torch.Tensor.to(args[0], self._precision)
        kwargs = {key: self._raise(item) for key, item in (kwargs or {}).items()}
        return func(*(self._raise(item) for item in args), **kwargs)

    def _raise(self, item: Any) -> Any:
        if isinstance(item, torch.dtype):
            return self._precision if item in self._low else _COMPLEX[self._precision].get(item, item)
        return item


@dataclass(eq=False)
class Truth:
    """A call's outcome by the original and by the oracle.

    `exact` holds tensors by path; a float tensor that is missing there is compared with the original's own values. `unchanged` are the
    paths of tensors that the original left bit for bit as they were. `aliases` are (result path, input path) pairs that share memory.
    `rebound` are paths of tensors that the original put in place of others.
    """

    tree: Tree
    leaves: list[Leaf]
    exact: dict[str, torch.Tensor]
    unchanged: frozenset[str]
    aliases: frozenset[tuple[str, str]]
    draws: bool  # the original advances a random generator
    oracle: str  # "float64", "float32" or "own"
    rebound: frozenset[str] = frozenset()
    usual: dict[str, float] = field(default_factory=dict)


def outcome(result: Any, args: Any, kwargs: Any, kept: Any) -> dict[str, Any]:
    """The named parts that are compared after a call."""
    return {"result": result, "args": args, "kwargs": kwargs, "kept": kept}


def alias_pairs(found: list[tuple[str, torch.Tensor]], reach: Mapping[str, torch.Tensor]) -> frozenset[tuple[str, str]]:
    """(result path, reachable path) of tensors in the same storage."""
    paths = list(reach)
    places: dict[int, list[str]] = {}
    for index, place in storages(list(reach.values())):
        places.setdefault(place, []).append(paths[index])
    results = [(path, tensor) for path, tensor in found if path.startswith("result")]
    pairs = ((results[index][0], path) for index, place in storages([tensor for _, tensor in results]) for path in places.get(place, []))
    return frozenset(pairs)


def rebound(found: list[tuple[str, torch.Tensor]], reach: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Paths that hold another tensor than before the call: who holds the earlier one sees nothing of what is written to the new."""
    before = [(path, tensor) for path, tensor in reach.items()]
    places = {before[index][0]: place for index, place in storages([tensor for _, tensor in before])}
    after = [(path, tensor) for path, tensor in found if path in places]
    return frozenset(after[index][0] for index, place in storages([tensor for _, tensor in after]) if places[after[index][0]] != place)


def reach_of(args: Any, kwargs: Any, module: nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor that a call can reach, by path: arguments, what the module keeps, its weights."""
    _, found = portrait({"args": args, "kwargs": kwargs, "kept": kept_by(module)})
    return {**dict(found), **{f"weight {name}": weight.data for name, weight in module.named_parameters()}}


class Original:
    """Runs the original on copies of a call's inputs; the module that it was given is never changed."""

    def __init__(self, module: nn.Module, ambient: Ambient) -> None:
        self.module = module
        self._ambient = ambient
        self._own = copy.deepcopy(module, {id(weight): weight for weight in module.parameters()})
        self._raised: dict[torch.dtype, nn.Module | None] = {}

    @property
    def twin(self) -> nn.Module:
        """The copy that the original's calls run on; it shares the weights."""
        return self._own

    def own(self, call: Call) -> tuple[Any, ...]:
        """(outcome parts, alias pairs, whether it drew random numbers, inputs before, rebound paths). Raises OutOfRange if it raises."""
        module = self._own
        try:
            with self._ambient.applied():
                args, kwargs, kept = call.fresh()
                restore(module, kept)
                before = {path: tensor.detach().clone() for path, tensor in _inputs(args, kwargs, module)}
                reach = reach_of(args, kwargs, module)
                seed(call.rng)
                state = torch.get_rng_state()
                result = type(module).forward(module, *args, **kwargs)
                draws = not torch.equal(state, torch.get_rng_state())
                parts = outcome(result, args, kwargs, kept_by(module))
        except Exception as error:
            raise OutOfRange(f"{type(error).__name__}: {error}") from error
        _, found = portrait(parts)
        return parts, alias_pairs(found, reach), draws, before, rebound(found, reach)

    def truth(self, call: Call, *, remember: bool = True) -> Truth:
        """Own outcome and oracle of a call, computed once per call. Raises OutOfRange if the original raises."""
        if not remember:
            return self._truth(call)
        known = call.notes.get("truth")
        if known is None:
            known = call.notes["truth"] = self._truth(call)
        return known

    def _truth(self, call: Call) -> Truth:
        parts, aliases, draws, before, others = self.own(call)
        tree, found = portrait(parts)
        unchanged = {path for path, tensor in found if path in before and _same(before[path], tensor)}
        listed = [leaf(path, tensor, values=path not in unchanged) for path, tensor in found]
        exact, oracle = self._exact(call, listed)
        return Truth(tree, listed, exact, frozenset(unchanged), aliases, draws, oracle, others)

    def _exact(self, call: Call, own: list[Leaf]) -> tuple[dict[str, torch.Tensor], str]:
        wanted = {one.path: one for one in own if one.values is not None and (one.values.is_floating_point() or one.values.is_complex())}
        doubtful: tuple[dict[str, torch.Tensor], str] | None = None
        for precision in (torch.float64, torch.float32):
            if precision is torch.float32 and all(one.dtype in ("float32", "float64") for one in wanted.values()):
                break
            found = self._at(call, precision)
            if found is None:
                continue
            exact = {path: found[path] for path, one in wanted.items() if path in found and tuple(found[path].shape) == one.shape}
            if exact.keys() != wanted.keys():
                continue
            whole = {one.path: one for one in own if one.values is not None and one.path not in wanted}
            exact |= {path: found[path] for path, one in whole.items() if path in found and tuple(found[path].shape) == one.shape}
            name = str(precision).removeprefix("torch.")
            if not any(_unrelated(one.values, exact[path]) for path, one in wanted.items()):
                return exact, name
            doubtful = doubtful or (exact, name)
        return doubtful or ({}, "own")

    def _at(self, call: Call, precision: torch.dtype) -> dict[str, torch.Tensor] | None:
        """Tensors of the outcome by path, computed at `precision`; None if the module can't run so."""
        module = self._module_at(precision)
        if module is None:
            return None
        low = _RAISED[precision]
        raised = _COMPLEX[precision]

        def up(tensor: torch.Tensor) -> torch.Tensor:
            copied = tensor.detach().clone()
            return copied.to(precision) if copied.dtype in low else copied.to(raised.get(copied.dtype, copied.dtype))

        try:
            with _exact_surroundings(self._ambient, precision):
                args, kwargs, kept = replaced((call.args, call.kwargs, call.kept), up)
                restore(module, kept)
                seed(call.rng)
                with _Raised(precision):
                    result = type(module).forward(module, *args, **kwargs)
                _, found = portrait(outcome(result, args, kwargs, kept_by(module)))
        except Exception:  # whatever stops it, another oracle is used and named
            return None
        return {path: plain(tensor) for path, tensor in found if type(tensor) is torch.Tensor and tensor.layout is torch.strided}

    def _module_at(self, precision: torch.dtype) -> nn.Module | None:
        if precision not in self._raised:
            try:
                self._raised[precision] = copy.deepcopy(self.module).to(precision)
            except Exception:  # a module that can't be copied or cast has no raised twin
                self._raised[precision] = None
        return self._raised[precision]


@contextlib.contextmanager
def _exact_surroundings(ambient: Ambient, precision: torch.dtype) -> Iterator[None]:
    """The call's surroundings without autocast, without TF32, and with a default dtype of the oracle's precision."""
    exact = replace(
        ambient,
        autocast=dict.fromkeys(ambient.autocast),
        default_dtype=dtype_name(precision),
        grad_enabled=False,
        matmul={**ambient.matmul, "cuda_matmul_tf32": False, "cudnn_tf32": False, "float32_matmul_precision": "highest"},
    )
    with exact.applied():
        yield


def _inputs(args: Any, kwargs: Any, module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    _, found = portrait({"args": args, "kwargs": kwargs, "kept": kept_by(module)})
    return [(path, tensor) for path, tensor in found if type(tensor) in (torch.Tensor, nn.Parameter)]


def _same(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Bit for bit, NaN included."""
    if type(after) not in (torch.Tensor, nn.Parameter) or before.shape != after.shape or before.dtype != after.dtype:
        return False
    return same_bits(before, after)


def _unrelated(own: torch.Tensor | None, exact: torch.Tensor) -> bool:
    """True if most rows of the original are so far from the oracle that one of them took another way through the code."""
    if own is None or not own.numel() or own.is_complex():
        return False
    limit = _UNRELATED.get(own.dtype, _UNRELATED_LOW)
    mine, true = (value.double().reshape(-1, value.shape[-1] if value.dim() else 1) for value in (own, exact))
    odd = ~(mine.isfinite() & true.isfinite())
    height = true.masked_fill(odd, 0).abs().amax(-1).clamp(min=1e-300)
    error = (mine - true).masked_fill(odd, 0).abs().amax(-1)
    return bool((error / height).median() > limit)
