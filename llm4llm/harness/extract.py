"""Task folders for hotspots of the live workload."""

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from llm4llm.harness import taskfile, values
from llm4llm.harness.ambient import dtype_name
from llm4llm.harness.captures import Captured, Sighting, capture, look, repeats
from llm4llm.harness.families import locate
from llm4llm.harness.instrument import refusal
from llm4llm.harness.pickling import NotCarried
from llm4llm.harness.regimes import PER_REGIME, chosen
from llm4llm.harness.workload import DriverEntry, Workload

MAX_BYTES = 2 << 30
SHARED_BYTES = 4 << 10  # equal tensors of this size and more are stored once for all calls
TASK_FIELDS = (  # those of schema.Task but its target
    *("schema_version", "id", "hotspot", "module_class", "module_path", "root", "phase", "share", "family", "calls"),
    *("device", "dtypes", "folder", "sha256"),
)


class _Refused(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Order(NamedTuple):
    """What was asked for one hotspot."""

    hotspot: str
    out: Path
    max_bytes: int
    share: float


def extract(workload: Workload, payload: dict[str, Any]) -> dict[str, Any]:
    """{"tasks": [...]}: for each wanted hotspot the fields of schema.Task but its target, or {"hotspot", "refusal": {"code", "text"}}.

    Payload: {"hotspots": [ids], "out": folder, "max_bytes": n, "shares": {id: 0 to 1}}; the last two are optional. A task's folder is
    out/<task id>; its id follows from the hotspot and the chosen calls, so a rerun of the script gives the same one.
    """
    wanted = list(dict.fromkeys(payload["hotspots"]))
    places = locate(workload, wanted)
    sightings = {hotspot: Sighting(place) for hotspot, place in places.items()}
    failures = _look_at_all(workload, list(sightings.values()))
    answers = []
    for hotspot in wanted:
        share = float(payload.get("shares", {}).get(hotspot, 0.0))
        order = _Order(hotspot, Path(payload["out"]), int(payload.get("max_bytes") or MAX_BYTES), share)
        try:
            if hotspot not in sightings:
                raise _Refused("unknown_hotspot", f"{hotspot} is no hotspot of this workload; run the profile again")
            answers.append(_task(order, sightings[hotspot], workload, failures))
        except _Refused as error:
            answers.append({"hotspot": hotspot, "refusal": {"code": error.code, "text": str(error)}})
        except (NotCarried, values.NotReplayable) as error:
            text = f"{places[hotspot].family.module_class}: {error}"
            answers.append({"hotspot": hotspot, "refusal": {"code": "not_carried", "text": text}})
        except torch.cuda.OutOfMemoryError as error:
            text = f"copies of the calls do not fit into the GPU's memory beside the model ({str(error).splitlines()[0]})"
            answers.append({"hotspot": hotspot, "refusal": {"code": "out_of_memory", "text": text}})
    return {"tasks": answers}


def _look_at_all(workload: Workload, sightings: list[Sighting]) -> list[str]:
    """Replay every driver call once, and its second example where a regime was seen only once; what failed, as text."""
    failures = _look(workload, sightings, 0)
    # whether a root's own forward ever runs is only known after the first replay, and phases depend on it
    unseen = [one for one in sightings if not one.facts]
    if unseen and len(failures) < len(workload.replayable()):
        failures += _look(workload, unseen, 0)
    if any(count < PER_REGIME for one in sightings for count in one.counts().values()):
        failures += _look(workload, sightings, 1)
    return list(dict.fromkeys(failures))


def _look(workload: Workload, sightings: list[Sighting], example: int) -> list[str]:
    failures = []
    for driver in workload.replayable():
        if example < len(driver.examples) and any(one.place.family.root is driver.root for one in sightings):
            try:
                look(sightings, driver, example)
            except Exception as error:  # one driver call that fails must not take the others along
                failures.append(f"{driver.id} ({driver.method}): {type(error).__name__}: {error}")
    return failures


def _task(order: _Order, one: Sighting, workload: Workload, failures: list[str]) -> dict[str, Any]:
    root = one.place.family.root.module
    if one.path is None or not one.facts:
        because = f"; these replays failed: {'; '.join(failures)}" if failures else ""
        raise _Refused("not_called", f"no instance of {one.place.family.module_class} was called in a replay of this phase{because}")
    module = root.get_submodule(one.path)
    _check_module(module, one.path, root, order.max_bytes)
    indices = _chosen(one)
    captured = _captured(one, indices, workload, module)
    calls, references = _with_equal_tensors_shared([item.call for item in captured], [item.reference for item in captured])
    facts = _facts(order, one, module, captured)
    folder = order.out / facts["id"]
    if folder.exists():
        shutil.rmtree(folder)
    written = taskfile.write_task(folder, facts, module, calls, references, captured[0].ambient, sys.path)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > order.max_bytes:
        shutil.rmtree(folder)
        raise _too_large(type(module).__name__, size, order.max_bytes, "with its calls")
    return {name: written[name] for name in TASK_FIELDS}


def _check_module(module: nn.Module, path: str, root: nn.Module, max_bytes: int) -> None:
    """Refuse what can't be a task whatever its calls are, before anything is copied."""
    for name, part in root.named_modules():
        related = name in ("", path) or path == "" or path.startswith(f"{name}.") or name.startswith(f"{path}.")
        if related and (reason := refusal(part)) is not None:
            raise _Refused(reason.code, reason.text)
    own = {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in [*module.parameters(), *module.buffers()]}
    size = sum(own.values())
    if size > max_bytes:
        raise _too_large(type(module).__name__, size, max_bytes, "with its weights")
    if "forward" in vars(module) and "_old_forward" not in vars(module):
        text = f"the script gave this {type(module).__name__} a forward of its own, so its class says nothing about what it computes"
        raise _Refused("instance_forward", text)


def _too_large(name: str, size: int, limit: int, what: str) -> _Refused:
    return _Refused("too_large", f"{name} takes {size >> 20} MiB {what}, and a task may take {limit >> 20}; a module inside it may fit")


def _chosen(one: Sighting) -> list[int]:
    """Indices of the calls to capture, all with the surroundings that most calls have: a task has one."""
    keys = [repr(item) for item in one.ambient]
    usual = max(dict.fromkeys(keys), key=keys.count)
    eligible = [index for index, key in enumerate(keys) if key == usual]
    return [eligible[pick] for pick in chosen([one.facts[index] for index in eligible])]


def _captured(one: Sighting, indices: list[int], workload: Workload, module: nn.Module) -> list[Captured]:
    """The chosen calls in full; with stand-ins only if the module was seen to give the same results on them."""
    for sparse in (True, False):
        found: list[Captured] = []
        for driver, example in _replays(one, indices, workload):
            found += capture(one, indices, driver, example, sparse=sparse)
        if not found:
            raise _Refused("not_repeatable", "the calls did not come again when the driver call was replayed, so they can't be captured")
        if not sparse or all(repeats(module, item) for item in found if item.stand_ins):
            return found
    raise AssertionError("the second attempt returns")


def _replays(one: Sighting, indices: list[int], workload: Workload) -> list[tuple[DriverEntry, int]]:
    drivers = {driver.id: driver for driver in workload.drivers}
    return [(drivers[driver], example) for driver, example in dict.fromkeys(one.spots[index][:2] for index in indices)]


def _facts(order: _Order, one: Sighting, module: nn.Module, captured: list[Captured]) -> dict[str, Any]:
    """Fields of schema.Task, with what a reader of the folder wants to know besides."""
    family = one.place.family
    by_spot = dict(zip(one.spots, one.facts, strict=True))
    taken = [by_spot[item.spot] for item in captured]
    found = [*module.parameters(), *values.tensors([(item.call["args"], item.call["kwargs"]) for item in captured])]
    regimes = {call.regime for call in taken}
    signature = "\n".join(sorted(call.signature for call in taken))
    name = hashlib.sha256(f"{order.hotspot}/{family.signature}/{signature}".encode()).hexdigest()[:12]
    return {
        "schema_version": 1,
        "id": f"t_{name}",
        "hotspot": order.hotspot,
        "module_class": family.module_class,
        "module_path": one.path,
        "root": family.root.id,
        "phase": one.place.phase,
        "share": order.share,
        "family": family.signature,
        "calls": len(captured),
        "device": str(next((item.device for item in found), torch.device("cpu"))),
        "dtypes": sorted({dtype_name(item.dtype) for item in found if item.is_floating_point() or item.is_complex()}),
        "instances": len(family.paths),
        "calls_seen": len(one.facts),
        "regimes": len(regimes),
        "regimes_with_one_call": sum(sum(call.regime == regime for call in taken) == 1 for regime in regimes),
        "regimes_left_out": len(one.counts().keys() - regimes),
        "stand_ins": sum(item.stand_ins for item in captured),
    }


def _with_equal_tensors_shared(calls: list[dict[str, Any]], references: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The same records with tensors that are equal at one place in several calls stored once, such as a mask kept by the module."""
    known: dict[str, list[torch.Tensor]] = {}
    return [_shared(call, known) for call in calls], [_shared(reference, known) for reference in references]


def _shared(record: dict[str, Any], known: dict[str, list[torch.Tensor]]) -> dict[str, Any]:
    listed = [(path, leaf) for path, leaf in values.leaves(record) if isinstance(leaf, torch.Tensor) and type(leaf) is torch.Tensor]
    owners: dict[int, int] = {}
    for tensor in {id(leaf): leaf for _, leaf in listed}.values():
        owners[tensor.untyped_storage().data_ptr()] = owners.get(tensor.untyped_storage().data_ptr(), 0) + 1
    twins: dict[int, torch.Tensor] = {}
    for path, tensor in listed:
        # what shares memory within a call must go on sharing it
        if tensor.untyped_storage().nbytes() >= SHARED_BYTES and owners[tensor.untyped_storage().data_ptr()] == 1:
            earlier = known.setdefault(path, [])
            twins[id(tensor)] = next((item for item in earlier if _identical(item, tensor)), tensor)
            if twins[id(tensor)] is tensor:
                earlier.append(tensor)
    return dict(values.replaced(record, lambda tensor: twins.get(id(tensor), tensor)))


def _identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    same_form = (left.dtype, left.shape, left.stride(), left.device) == (right.dtype, right.shape, right.stride(), right.device)
    return same_form and left.untyped_storage().nbytes() == right.untyped_storage().nbytes() and torch.equal(left, right)
