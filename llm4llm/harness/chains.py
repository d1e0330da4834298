"""Bare loops: forwards of one root that hand a cache along, recognised by identity.

A forward continues a chain if it gets an object that an earlier forward changed (a cache), or something that an earlier forward returned
(tuple caches). What the script itself changed between two forwards is never taken over from the chain: it is copied anew, and a cache
that was changed in between ends the chain, because a replay could not know of it.
"""

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from llm4llm.harness import values
from llm4llm.harness.nested import equal, nodes
from llm4llm.harness.workload import Example, Kept, Reason, Returned, RootEntry, Step

_RESULTS_KEPT = 4  # steps whose results can still be referred to
MAX_STEPS = 4096


def state_of(value: Any) -> tuple[Any, ...]:
    """Facts that change when a nested value is changed: identity of memory, versions, shapes, scalars."""
    facts: list[Any] = []
    for path, leaf in values.leaves(value):
        if isinstance(leaf, torch.Tensor):
            version = None if leaf.is_inference() else leaf._version
            address = leaf.data_ptr() if leaf.layout is torch.strided and leaf.device.type != "meta" else id(leaf)
            facts.append((path, address, version, tuple(leaf.shape), leaf.dtype))
        elif isinstance(leaf, (bool, int, float, str, type(None))):
            facts.append((path, leaf))
        else:
            facts.append((path, type(leaf)))
    return tuple(facts)


@dataclass
class _Known:
    """A value that a step got or returned: how to find it again without keeping a tensor alive."""

    reference: Any  # a weak reference where the value permits one
    stored: Any  # its stored copy, or a Returned
    state: tuple[Any, ...]
    changed: bool  # by a forward of this chain

    def is_for(self, value: Any) -> bool:
        held = self.reference() if isinstance(self.reference, weakref.ref) else self.reference
        return held is value

    def still_holds(self, value: Any) -> bool:
        """False if the script wrote into an inference tensor, which has no version counter, after a forward that left it alone."""
        if self.changed or not isinstance(value, torch.Tensor) or not value.is_inference():
            return True
        return isinstance(self.stored, Returned) or equal(value, self.stored)


def _known(value: Any, stored: Any, *, changed: bool) -> _Known:
    try:
        reference: Any = weakref.ref(value)
    except TypeError:
        reference = value  # plain lists and dicts
    return _Known(reference, stored, state_of(value), changed)


@dataclass
class Links:
    """How a call hangs on a chain: `memo` for its copies, and whether it continues the chain at all."""

    memo: dict[int, Any]
    continues: bool


@dataclass
class Chain:
    """Forwards of one root, in order; `steps` is empty if inputs are not stored."""

    root: RootEntry
    order: int  # of its first call among all calls
    kept: list[Kept] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    wall_ms: list[float] = field(default_factory=list)
    stored_bytes: tuple[int, int] = (0, 0)  # host, GPU
    stored: bool = True
    refusal: Reason | None = None  # of the root, when the chain began
    failure: Reason | None = None  # why inputs could not be stored
    _given: dict[int, _Known] = field(default_factory=dict)
    _returned: list[dict[int, _Known]] = field(default_factory=list)

    def links(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Links:
        """What of these arguments is known from earlier steps and unchanged since."""
        links = Links({}, continues=False)
        if not self.signatures or len(self.signatures) >= MAX_STEPS:
            return links
        for value in _tracked(args, kwargs):
            known = self._given.get(id(value))
            if known is not None and known.is_for(value) and known.state == state_of(value) and known.still_holds(value):
                links.memo[id(value)] = (known.stored, value)
                links.continues |= known.changed
        for _, node in nodes((args, kwargs)):
            if id(node) in links.memo:
                continue
            for results in self._returned:
                known = results.get(id(node))
                if known is not None and known.is_for(node) and known.state == state_of(node):
                    links.memo[id(node)] = (known.stored, node)
                    links.continues = True
        return links

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, tuple[Any, ...]]:
        """States of the arguments before the call, to be handed to `after`."""
        return {id(value): state_of(value) for value in _tracked(args, kwargs)}

    def after(self, call: "Call", result: Any, wall_ms: float) -> None:
        """Take the finished call in as the chain's next step."""
        number = len(self.signatures)
        self.signatures.append(call.signature)
        self.wall_ms.append(wall_ms)
        if call.step is not None:
            self.steps.append(call.step)
        self._given = self._given_by(call)
        results = _results(result, number, {id(item) for item in _tracked(call.args, call.kwargs)})
        self._returned = [*self._returned[-_RESULTS_KEPT + 1 :], results]

    def _given_by(self, call: "Call") -> dict[int, _Known]:
        given: dict[int, _Known] = {}
        for value in _tracked(call.args, call.kwargs):
            earlier = self._given.get(id(value))
            stored = call.memo[id(value)][0] if id(value) in call.memo else None
            now = state_of(value)
            changed = call.states.get(id(value)) != now or (earlier is not None and earlier.is_for(value) and earlier.changed)
            if not changed and any(tensor.is_inference() for tensor in values.tensors(value)):
                # inference tensors have no version counter: only their values tell
                changed = stored is not None and not isinstance(stored, Returned) and not equal(value, stored)
            given[id(value)] = _known(value, stored, changed=changed)
        return given

    def example(self) -> Example | None:
        """The stored inputs, if every step has them."""
        if not self.stored or len(self.steps) != len(self.signatures):
            return None
        return Example(self.steps, self.kept, self.stored_bytes)


@dataclass
class Call:
    """A forward between its beginning and its end."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    signature: str
    step: Step | None
    memo: dict[int, Any]
    states: dict[int, tuple[Any, ...]]


def _tracked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Arguments, and members of tuples among them, that can carry state from one forward to the next."""
    found: list[Any] = []
    waiting = [*reversed([*args, *kwargs.values()])]
    while waiting:
        value = waiting.pop()
        if isinstance(value, tuple):
            waiting.extend(reversed(value))
        elif isinstance(value, (torch.Tensor, list, dict)) or values.is_object(value):
            found.append(value)
    return found


def _results(result: Any, step: int, given: set[int]) -> dict[int, _Known]:
    """Tensors anywhere in a result, and objects right below it, that later forwards may get; what was an argument stays one."""
    found: dict[int, _Known] = {}
    below = {id(result)} | {id(item) for item in _parts(result)}
    for path, node in nodes(result):
        is_object = values.is_object(node) and id(node) in below
        if id(node) not in given and id(node) not in found and (isinstance(node, torch.Tensor) or is_object):
            found[id(node)] = _known(node, Returned(step, path), changed=True)
    return found


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    return list(vars(value).values()) if values.is_object(value) else []
