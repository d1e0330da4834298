"""Two variants of a live model that are switched between in microseconds: with the base patches, and with the new ones on top."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from llm4llm.harness.workload import RootEntry
from llm4llm.runtime.apply import Handle, PatchSpec, apply

Portrait = list[tuple[str, list[tuple[str, int]], list[tuple[str, list[Any]]]]]


def portrait(model: nn.Module) -> tuple[str, Portrait]:
    """What must be as before once patches are gone: repr, every module's dict (keys, order, objects) and its hooks."""
    parts: Portrait = []
    for path, part in model.named_modules():
        hooks = [(key, [(number, id(hook)) for number, hook in held.items()]) for key, held in vars(part).items() if key.endswith("_hooks")]
        parts.append((path, [(key, id(value)) for key, value in vars(part).items()], hooks))
    return repr(model), parts


def difference(before: tuple[str, Portrait], after: tuple[str, Portrait]) -> str | None:
    """The first way in which a model is not as before, in words; None if it is."""
    if before[0] != after[0]:
        return "the model's repr differs"
    if [path for path, _, _ in before[1]] != [path for path, _, _ in after[1]]:
        return "the model's modules differ"
    for (path, held, hooks), (_, held_now, hooks_now) in zip(before[1], after[1], strict=True):
        where = path or "the root"
        if held != held_now:
            keys, keys_now = [key for key, _ in held], [key for key, _ in held_now]
            changed = sorted(set(keys) ^ set(keys_now)) or [key for (key, one), (_, two) in zip(held, held_now, strict=True) if one != two]
            return f"the dict of {where} differs ({', '.join(changed) or 'order of keys'})"
        if hooks != hooks_now:
            return f"the hooks of {where} differ"
    return None


def specs(patches: Sequence[dict[str, Any]], root: str) -> list[PatchSpec]:
    """The patches of a trial's payload that go to one root."""
    return [
        PatchSpec(
            name=patch["candidate"],
            file=Path(patch["file"]),
            domain=patch["proven_domain"],
            paths=tuple(patch["paths"]),
            config=dict(patch.get("config") or {}),
            family=patch.get("family"),
            sha256=patch.get("candidate_sha256"),
        )
        for patch in patches
        if patch["root"] == root
    ]


class Arms:
    """Prepared patches on the roots of a workload; `off`, `base` and `full` switch, `remove` ends it. Off until switched."""

    def __init__(self) -> None:
        self._base: list[Handle] = []
        self._full: list[Handle] = []
        self.switch: dict[str, Callable[[], None]] = {"off": self.off, "base": self.base, "full": self.full}

    def prepare(self, roots: Sequence[RootEntry], base: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> None:
        """Verify and prepare every site of both variants. Raises what `apply` raises; `remove` cleans up in any case."""
        for patches, handles in ((base, self._base), ([*base, *new], self._full)):
            for root in roots:
                mine = specs(patches, root.id)
                if mine:
                    handles.append(apply(root.module, mine))
                    handles[-1].disable()  # one site carries one dispatcher at a time

    def off(self) -> None:
        for handle in (*self._base, *self._full):
            handle.disable()

    def base(self) -> None:
        self._only(self._full, self._base)

    def full(self) -> None:
        self._only(self._base, self._full)

    @staticmethod
    def _only(out: list[Handle], into: list[Handle]) -> None:
        for handle in out:
            handle.disable()
        for handle in into:
            handle.enable()

    def reset_counters(self) -> None:
        for handle in self._full:
            handle.reset_counters()

    def sites(self) -> list[dict[str, Any]]:
        """Counters of the full variant, one entry per patch and site."""
        return [site for handle in self._full for site in handle.status()["sites"]]

    def remove(self) -> None:
        """Every root as before, prepared state gone. Idempotent."""
        first: BaseException | None = None
        for handle in (*self._full, *self._base):
            try:
                handle.remove()
            except BaseException as error:  # the others must still come off
                first = first or error
        if first is not None:
            raise first


@contextmanager
def arms(roots: Sequence[RootEntry], base: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> Iterator[Arms]:
    """Arms that come off at the end, whatever happens."""
    prepared = Arms()
    try:
        prepared.prepare(roots, base, new)
        yield prepared
    finally:
        prepared.remove()
