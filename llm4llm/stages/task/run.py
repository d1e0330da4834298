"""Choose the hotspots that are worth an attempt and make each one reproducible."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from llm4llm.assets import Seed
from llm4llm.errors import StageError
from llm4llm.kit import NotPlain, fresh_untrusted, take_untrusted
from llm4llm.schema.capture import Capture
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, StageName
from llm4llm.schema.profile import Hotspot, ProfileReport
from llm4llm.schema.reason import Reason
from llm4llm.schema.selection import Selection
from llm4llm.schema.task import Task, is_task_id
from llm4llm.stages.task.needs import needs_cuda, phases
from llm4llm.stages.tools import TASKS, Failed, Ok, Tools

MIN_SHARE = 0.01  # below it, even a patch that takes no time gains less than 1 %
MAX_BYTES = 2 << 30  # of one task folder
MAX_FILES = 10_000
MIN_EXTRACT_S = 5.0
GRACE_S = 120.0  # loading seeds or writing folders comes on top of the replay
_LOST = ("died", "oom", "timeout", "protocol")


@dataclass(frozen=True)
class Wanted:
    """What hotspots are looked at for; without `seeds` every one above the share becomes a task."""

    capture: Capture
    report: ProfileReport
    seeds: tuple[Seed, ...]
    every_hotspot: bool = False
    min_share: float = MIN_SHARE


def run(job: Job, wanted: Wanted, tools: Tools) -> Selection:
    """A task or a reason for every hotspot. Nothing here ends the job: a host that dies is a reason."""
    skipped = _refused(wanted)
    open_spots = [spot for spot in wanted.report.hotspots if spot.id not in skipped]
    matches = _matches(open_spots, wanted, tools, skipped)
    chosen = [spot for spot in open_spots if spot.id not in skipped]
    chosen.sort(key=lambda spot: (-spot.share, spot.id))
    tasks = _extracted(job, chosen, wanted, tools, skipped)
    text = f"{len(tasks)} of {len(wanted.report.hotspots)} hotspots are worth an attempt"
    tools.progress(Event(job=job.id, kind="note", stage=StageName.TASK, text=text))
    seeds = {task.id: matches.get(task.hotspot, ()) for task in tasks}
    return Selection(tasks=tuple(tasks), seeds=seeds, skipped=skipped)


def _refused(wanted: Wanted) -> dict[str, Reason]:
    """Reasons that need no look at the module."""
    training = {root.id for root in wanted.capture.roots if root.training}
    reasons: dict[str, Reason] = {}
    for spot in wanted.report.hotspots:
        if spot.root in training:
            text = "training mode: the model was called with dropout and statistics active; call eval() on it before inference"
            reasons[spot.id] = Reason(code="training_mode", text=text)
        elif spot.refusal is not None:
            reasons[spot.id] = spot.refusal
        elif spot.share < wanted.min_share:
            text = f"{100 * spot.share:.2f} % of the workload's time, below the {100 * wanted.min_share:g} % that are worth an attempt"
            reasons[spot.id] = Reason(code="below_minimum_share", text=text)
    return reasons


def _matches(spots: list[Hotspot], wanted: Wanted, tools: Tools, skipped: dict[str, Reason]) -> Mapping[str, tuple[str, ...]]:
    """Seeds that say they match and can run there; hotspots without one are added to `skipped`."""
    if not spots:
        return {}
    answer: Ok | Failed = Ok({"matches": {}})
    if wanted.seeds:
        seeds = [{"name": seed.name, "path": str(seed.path)} for seed in wanted.seeds]
        payload = {"hotspots": [spot.id for spot in spots], "seeds": seeds}
        answer = tools.host.request("match", payload, tools.seconds_left() + GRACE_S)
    if isinstance(answer, Failed):
        reason = Reason(code=f"host_{answer.kind}", text=f"the seeds could not be compared with the live model: {answer.reason}")
        if not wanted.every_hotspot:
            skipped.update({spot.id: reason for spot in spots})
        return {}
    matches: dict[str, tuple[str, ...]] = {}
    cuda_only = {seed.name for seed in wanted.seeds if needs_cuda(seed.path)}
    only = {seed.name: phases(seed.path) for seed in wanted.seeds}
    devices = {root.id: root.devices for root in wanted.capture.roots}
    for spot in spots:
        named = answer.result["matches"].get(spot.id, ())
        on_gpu = any(device.startswith("cuda") for device in devices.get(spot.root, ()))
        placed = tuple(name for name in named if spot.phase in (only[name] or {spot.phase}))
        fitting = [name for name in placed if on_gpu or name not in cuda_only]
        matches[spot.id] = tuple(sorted(fitting, key=lambda name: name not in cuda_only))  # kernels first: on a GPU they win more often
        if wanted.every_hotspot or matches[spot.id]:
            continue
        skipped[spot.id] = _no_seed(spot, placed, len(cuda_only) if not on_gpu else 0)
    return matches


def _no_seed(spot: Hotspot, named: tuple[str, ...], for_gpus: int) -> Reason:
    if named:
        text = f"wrong device: {', '.join(named)} would fit, but the kernels there need a CUDA device and the model is on the CPU"
        return Reason(code="wrong_device", text=text)
    text = f"no seed matches {spot.module_class} in its {spot.phase} phase"
    if for_gpus:
        text += f" on the CPU ({for_gpus} more seeds hold kernels that need a CUDA device)"
    return Reason(code="no_seed", text=text)


def _extracted(job: Job, spots: list[Hotspot], wanted: Wanted, tools: Tools, skipped: dict[str, Reason]) -> list[Task]:
    """Tasks of the spots, in their order; refused ones are added to `skipped`."""
    if not spots:
        return []
    if tools.seconds_left() < MIN_EXTRACT_S:
        reason = Reason(code="budget_spent", text="the budget was used up before this was looked at; give the job a larger --budget")
        skipped.update({spot.id: reason for spot in spots})
        return []
    tools.scratch.mkdir(parents=True, exist_ok=True)
    fresh_untrusted(tools.scratch, TASKS)
    answer = _extract(spots, tools)
    if isinstance(answer, Ok):
        found = list(answer.result["tasks"])
    elif answer.kind in _LOST and len(spots) > 1:
        # one of them took the host with it: each one by itself, so that the others are not lost
        found = [item for spot in spots for item in _one(spot, tools)]
    else:
        found = [_refusal(spot, answer) for spot in spots]
    tasks: dict[str, Task] = {}
    for item in found:
        if "refusal" in item:
            skipped[item["hotspot"]] = Reason.model_validate(item["refusal"])
            continue
        task = _task(item, wanted.capture.environment.target)
        if any(task.id == other.id for other in tasks.values()):
            raise StageError(f"the live host gave two tasks with the id {task.id}", "this is a fault of llm4llm")
        try:
            _take(task.id, tools)
        except (OSError, NotPlain) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            skipped[task.hotspot] = Reason(code="not_carried", text=f"what was written of its calls can't be used ({why})")
            continue
        tasks[task.hotspot] = task.model_copy(update={"folder": str(tools.task_folder(task.id))})
    for spot in spots:
        if spot.id not in tasks and spot.id not in skipped:
            skipped[spot.id] = Reason(code="not_extracted", text="the live host gave no task and no reason; this is a fault of llm4llm")
    return [tasks[spot.id] for spot in spots if spot.id in tasks]


def _extract(spots: list[Hotspot], tools: Tools) -> Ok | Failed:
    shares = {spot.id: spot.share for spot in spots}
    payload = {"hotspots": list(shares), "out": str(tools.scratch / TASKS), "max_bytes": MAX_BYTES, "shares": shares}
    return tools.host.request("extract", payload, tools.seconds_left() + GRACE_S)


def _one(spot: Hotspot, tools: Tools) -> list[dict[str, Any]]:
    if tools.cancelled() or tools.seconds_left() < MIN_EXTRACT_S:
        reason = {"code": "budget_spent", "text": "the budget was used up before this was looked at; give the job a larger --budget"}
        return [{"hotspot": spot.id, "refusal": reason}]
    answer = _extract([spot], tools)
    return list(answer.result["tasks"]) if isinstance(answer, Ok) else [_refusal(spot, answer)]


def _refusal(spot: Hotspot, failed: Failed) -> dict[str, Any]:
    text = f"its calls could not be captured ({failed.kind}: {failed.reason})"
    return {"hotspot": spot.id, "refusal": {"code": f"host_{failed.kind}", "text": text}}


def _take(task_id: str, tools: Tools) -> None:
    """Move a task's folder to where the script can't write. What the live host says of its place counts nothing."""
    if tools.private is not None:
        take_untrusted(tools.scratch, (TASKS, task_id), tools.task_folder(task_id), MAX_FILES, MAX_BYTES)


def _task(item: dict[str, Any], target: str) -> Task:
    try:
        task = Task.model_validate({**{name: item[name] for name in Task.model_fields if name in item}, "target": target, "folder": None})
    except ValidationError as error:
        raise StageError(f"the live host's task can't be read ({error.errors()[0]['msg']})", "this is a fault of llm4llm") from error
    if not is_task_id(task.id):
        raise StageError(f"the live host's task can't be read ({task.id[:100]!r} is no id)", "this is a fault of llm4llm")
    return task
