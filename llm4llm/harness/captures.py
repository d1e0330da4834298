"""Calls of one module instance during replays: first seen from outside, then the chosen ones with everything they reach."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from llm4llm.harness import values
from llm4llm.harness.ambient import Ambient, Randomness
from llm4llm.harness.families import Place
from llm4llm.harness.instrument import instrumented
from llm4llm.harness.nested import equal
from llm4llm.harness.regimes import CallFacts, call_facts
from llm4llm.harness.replay import replay
from llm4llm.harness.touched import Touched, storage_bytes, storage_of
from llm4llm.harness.workload import DriverEntry

STAND_IN_BYTES = 16 << 10  # smaller tensors are stored as they are: a stand-in would save nothing
Spot = tuple[str, int, int]  # driver id, example, number of the call within that replay


class Enough(BaseException):
    """Ends a replay early, once every wanted call was captured. No Exception, so that the script's own handlers let it pass."""


@dataclass
class Sighting:
    """The calls of one hotspot, in the order in which replays made them."""

    place: Place
    path: str | None = None  # the first instance that was called in this phase; it represents the hotspot
    facts: list[CallFacts] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    ambient: list[dict[str, Any]] = field(default_factory=list)
    untouched: dict[str, set[str]] = field(default_factory=dict)  # regime → paths of tensors that no call looked into

    def counts(self) -> dict[str, int]:
        """Number of calls by regime."""
        found: dict[str, int] = {}
        for one in self.facts:
            found[one.regime] = found.get(one.regime, 0) + 1
        return found


def look(sightings: list[Sighting], driver: DriverEntry, example: int) -> None:
    """Replay a driver call once and add every call of the hotspots' instances to their sightings."""
    wanted = [one for one in sightings if one.place.family.root is driver.root]
    paths = {path for one in wanted for path in one.place.family.paths}
    numbers: dict[int, int] = {}

    def watch(path: str, module: nn.Module, phase: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        for one in wanted:
            if one.place.phase == phase and path in one.place.family.paths and one.path in (None, path):
                one.path = path
                number = numbers[id(one)] = numbers.get(id(one), -1) + 1
                return _seen(one, (driver.id, example, number), module, original, args, kwargs)
        return original(*args, **kwargs)

    with instrumented(driver.root, watch, paths, driver):
        replay(driver, example=example)


def _seen(one: Sighting, spot: Spot, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    ambient = Ambient.now().to_json()
    facts = call_facts(args, kwargs, module, ambient)
    one.facts.append(facts)
    one.spots.append(spot)
    one.ambient.append(ambient)
    if facts.regime in one.untouched:
        return original(*args, **kwargs)
    found = list(_large(args, kwargs, module))
    if not found:
        one.untouched[facts.regime] = set()
        return original(*args, **kwargs)
    with Touched() as touched:
        result = original(*args, **kwargs)
    one.untouched[facts.regime] = {path for path, tensor in found if not touched.touches(tensor)}
    return result


def _large(args: Any, kwargs: Any, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that are worth a stand-in. Buffers are left out: the module holds them anyway."""
    plain = {path: parts["plain"] for path, parts in values.kept_by(module).items()}
    for path, leaf in values.leaves({"args": args, "kwargs": kwargs, "plain": plain}):
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, nn.Parameter) and storage_bytes(leaf) >= STAND_IN_BYTES:
            yield path, leaf


@dataclass
class Captured:
    """One call in full. `stand_ins` counts tensors that are only there in form."""

    spot: Spot
    call: dict[str, Any]
    reference: dict[str, Any]
    ambient: dict[str, Any]
    stand_ins: int = 0


def capture(one: Sighting, indices: list[int], driver: DriverEntry, example: int, *, sparse: bool) -> list[Captured]:
    """Replay a driver call and take the chosen ones of its calls; `sparse` puts stand-ins for what a call does not look into.

    Calls that do not come again as they were seen are left out. Raises values.NotReplayable for what can't be copied.
    """
    expected = {one.spots[index]: one.facts[index] for index in indices if one.spots[index][:2] == (driver.id, example)}
    found: list[Captured] = []
    number = -1

    def watch(path: str, module: nn.Module, phase: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        nonlocal number
        if phase != one.place.phase or path != one.path:
            return original(*args, **kwargs)
        number += 1
        spot = (driver.id, example, number)
        ambient = Ambient.now().to_json()
        if spot not in expected or call_facts(args, kwargs, module, ambient) != expected[spot]:
            return original(*args, **kwargs)
        untouched = one.untouched.get(expected[spot].regime, set()) if sparse else set()
        result, taken = _take(module, original, (args, kwargs), untouched)
        taken.call.update(phase=phase, instance=path)
        taken.spot, taken.ambient = spot, ambient
        found.append(taken)
        # an encoder runs before the root's own forward, whose calls the phases are counted from
        if number >= max(spot[2] for spot in expected) and phase != "encode":
            raise Enough
        return result

    if expected:
        try:
            with instrumented(driver.root, watch, {one.path or ""}, driver):
                replay(driver, example=example)
        except Enough:
            pass
    return found


def _take(module: nn.Module, original: Callable[..., Any], inputs: tuple[Any, Any], untouched: set[str]) -> tuple[Any, Captured]:
    args, kwargs = inputs
    kept = values.kept_by(module)
    left_out = _storages_only_at(untouched, args, kwargs, module)
    copied = _copied((args, kwargs, kept), left_out)
    rng = Randomness.now()
    result = original(*args, **kwargs)
    after = _copied((result, args, kwargs, values.kept_by(module)), left_out)
    names = ("args", "kwargs", "kept")
    call = {**dict(zip(names, copied[0], strict=True)), "rng": rng}
    reference = dict(zip(("result", *names), after[0], strict=True))
    return result, Captured(("", 0, 0), call, reference, {}, copied[1])


def _storages_only_at(untouched: set[str], args: Any, kwargs: Any, module: nn.Module) -> set[int]:
    """Storages that nothing but the untouched paths reaches."""
    if not untouched:
        return set()
    addresses: dict[int, bool] = {}
    for path, tensor in _large(args, kwargs, module):
        address = storage_of(tensor)
        if address is not None:
            addresses[address] = addresses.get(address, True) and path in untouched
    own = {storage_of(tensor) for tensor in [*module.parameters(), *module.buffers()]}
    return {address for address, only in addresses.items() if only} - own


def _copied(value: Any, left_out: set[int]) -> tuple[Any, int]:
    """(a snapshot with stand-ins for tensors in the storages `left_out`, how many there are)."""
    listed = values.tensors(value)
    copier = values.tensor_copier([tensor for tensor in listed if storage_of(tensor) not in left_out])
    count = 0

    def change(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal count
        if storage_of(tensor) in left_out:
            count += 1
            return stand_in(tensor)
        return copier(tensor)

    with torch.inference_mode(False), torch.no_grad():
        return values.replaced(value, change), count


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, dtype and device that takes one element of memory: every stride is zero."""
    return torch.zeros((1,), dtype=tensor.dtype, device=tensor.device).as_strided(tensor.shape, (0,) * tensor.dim())


def is_stand_in(tensor: torch.Tensor) -> bool:
    """True for what `stand_in` makes: more than one element, all at one place."""
    return tensor.layout is torch.strided and tensor.numel() > 1 and not any(tensor.stride())


def repeats(module: nn.Module, one: Captured) -> bool:
    """True if the stored call, stand-ins included, gives the stored result bit by bit. The module is left as it was."""
    live, before = values.kept_by(module), Randomness.now()
    args, kwargs, kept = values.snapshot((one.call["args"], one.call["kwargs"], one.call["kept"]))
    try:
        values.restore(module, kept)
        one.call["rng"].restore()
        with Ambient.from_json(one.ambient).applied():
            result = type(module).forward(module, *args, **kwargs)
        after = {"result": result, "args": args, "kwargs": kwargs, "kept": values.kept_by(module)}
        return bool(all(map(functools.partial(same_part, one.reference, after), after)))
    except Exception:  # a stand-in where real values are needed may fail anywhere
        return False
    finally:
        values.restore(module, live)
        before.restore()


def same_part(expected: dict[str, Any], found: dict[str, Any], part: str) -> bool:
    """True if one part of what a call left behind is bit by bit what it was in the reference."""
    left, right = dict(values.leaves(expected[part])), dict(values.leaves(values.snapshot(found[part])))
    return left.keys() == right.keys() and all(_same_leaf(left[path], right[path]) for path in left)


def _same_leaf(left: object, right: object) -> bool:
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return equal(left, right)
    if left is right:
        return True
    if (left.shape, left.dtype, left.device) != (right.shape, right.dtype, right.device) or left.layout is not torch.strided:
        return False
    if is_stand_in(left):
        return is_stand_in(right)
    return left.stride() == right.stride() and torch.equal(_bits(left), _bits(right))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes of the elements in order, so that two NaNs can be equal."""
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
