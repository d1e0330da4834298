"""Module families: instances that compute the same function of inputs and weights, on the same kind of device."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from torch import nn

from llm4llm.harness.phases import Phase
from llm4llm.harness.workload import RootEntry, Workload
from llm4llm.runtime.signature import family_signatures, root_fingerprint

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, eq=False)
class Family:
    """Instances below one root with equal signature and devices. `paths` are in the model's own order; the first one represents them."""

    root: RootEntry
    signature: str
    devices: tuple[str, ...]
    paths: tuple[str, ...]
    module: nn.Module  # the instance at paths[0]
    key: str  # what identifies the family in hotspot ids: deterministic over runs of the script

    @property
    def module_class(self) -> str:
        return type(self.module).__name__

    def hotspot_id(self, phase: Phase) -> str:
        return "h_" + hashlib.sha256(f"{self.key}/{phase}".encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Place:
    """Where a hotspot lies."""

    family: Family
    phase: Phase


def families(root: RootEntry, twins: bool = False) -> list[Family]:
    """Families below a root, in order of their first instance; each instance once, at its first path.

    `twins`: another root has the same fingerprint, so that ids need the root's own id to stay apart.
    """
    signatures = family_signatures(root.module)
    grouped: dict[tuple[str, tuple[str, ...]], list[tuple[str, nn.Module]]] = {}
    for path, module in root.module.named_modules():
        devices = tuple(sorted({item.device.type + (f":{item.device.index}" if item.device.index else "") for item in module.parameters()}))
        grouped.setdefault((signatures[path], devices), []).append((path, module))
    split = {signature for signature in signatures.values() if sum(found == signature for found, _ in grouped) > 1}
    start = (root.fingerprint or root_fingerprint(root.module)) + (f"/{root.id}" if twins else "")
    result = []
    for (signature, devices), members in grouped.items():
        place = f"/{','.join(devices)}" if signature in split else ""
        paths = tuple(path for path, _ in members)
        result.append(Family(root, signature, devices, paths, members[0][1], f"{start}/{signature}{place}"))
    return result


def all_families(workload: Workload) -> dict[str, list[Family]]:
    """Families of every root, by root id."""
    prints = [root.fingerprint or root_fingerprint(root.module) for root in workload.roots]
    return {root.id: families(root, twins=prints.count(mark) > 1) for root, mark in zip(workload.roots, prints, strict=True)}


def locate(workload: Workload, hotspots: Iterable[str]) -> dict[str, Place]:
    """Hotspot id → where it lies, for those that exist; needs no profile, since ids follow from the models alone."""
    wanted = set(hotspots)
    places: dict[str, Place] = {}
    for found in all_families(workload).values():
        for family in found:
            for phase in PHASES:
                name = family.hotspot_id(phase)
                if name in wanted:
                    places[name] = Place(family, phase)
    return places
