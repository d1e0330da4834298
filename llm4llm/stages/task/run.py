"""Choose the hotspots that are worth an attempt and make each one reproducible."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from llm4llm.assets import Seed
from llm4llm.errors import StageError
from llm4llm.kit import NotPlain, counted, fresh_untrusted, take_untrusted
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
    text = f"worth an attempt: {len(tasks)} of {counted(len(wanted.report.hotspots), 'hotspot')}"
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
        named = _known(answer.result, spot.id, only)
        on_gpu = any(device.startswith("cuda") for device in devices.get(spot.root, ()))
        placed = tuple(name for name in named if spot.phase in (only[name] or {spot.phase}))
        fitting = [name for name in placed if on_gpu or name not in cuda_only]
        matches[spot.id] = tuple(sorted(fitting, key=lambda name: name not in cuda_only))  # kernels first: on a GPU they win more often
        if wanted.every_hotspot or matches[spot.id]:
            continue
        skipped[spot.id] = _no_seed(spot, placed, len(cuda_only) if not on_gpu else 0)
    return matches


def _known(result: dict[str, Any], hotspot: str, seeds: Mapping[str, object]) -> tuple[str, ...]:
    """The seeds that the host named for a hotspot, without what was never asked about."""
    matches = result.get("matches")
    named = matches.get(hotspot, ()) if isinstance(matches, dict) else ()
    return tuple(name for name in seeds if name in named) if isinstance(named, list | tuple) else ()


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
        found = _listed(answer)
    elif answer.kind in _LOST and len(spots) > 1:
        # one of them took the host with it: each one by itself, so that the others are not lost
        found = [item for spot in spots for item in _one(spot, tools)]
    else:
        found = [_refusal(spot, answer) for spot in spots]
    tasks: dict[str, Task] = {}
    for spot in spots:
        item = next((one for one in found if one.get("hotspot") == spot.id), None)
        if item is None:
            continue
        outcome = _outcome(item, wanted.capture.environment.target)
        if isinstance(outcome, Task):
            if any(outcome.id == other.id for other in tasks.values()):
                raise StageError(f"the live host gave two tasks with the id {outcome.id}", "this is a fault of llm4llm")
            outcome = _taken(outcome, tools)
        if isinstance(outcome, Reason):
            skipped[spot.id] = outcome
        else:
            tasks[spot.id] = outcome
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
    return _listed(answer) if isinstance(answer, Ok) else [_refusal(spot, answer)]


def _listed(answer: Ok) -> list[dict[str, Any]]:
    """What the host says of each hotspot; what is no such thing is left out."""
    tasks = answer.result.get("tasks")
    return [item for item in tasks if isinstance(item, dict)] if isinstance(tasks, list) else []


def _refusal(spot: Hotspot, failed: Failed) -> dict[str, Any]:
    text = f"its calls could not be captured ({failed.kind}: {failed.reason})"
    return {"hotspot": spot.id, "refusal": {"code": f"host_{failed.kind}", "text": text}}


def _taken(task: Task, tools: Tools) -> Task | Reason:
    """A task whose folder was moved to where the script can't write. What the live host says of its place counts nothing."""
    try:
        if tools.private is not None:
            take_untrusted(tools.scratch, (TASKS, task.id), tools.task_folder(task.id), MAX_FILES, MAX_BYTES)
    except (OSError, NotPlain) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return Reason(code="not_carried", text=f"what was written of its calls can't be used ({why})")
    return task.model_copy(update={"folder": str(tools.task_folder(task.id))})


def _outcome(item: dict[str, Any], target: str) -> Task | Reason:
    try:
        if "refusal" in item:
            return Reason.model_validate(item["refusal"])
        task = Task.model_validate({**{name: item[name] for name in Task.model_fields if name in item}, "target": target, "folder": None})
    except ValidationError as error:
        raise StageError(f"the live host's task can't be read ({error.errors()[0]['msg']})", "this is a fault of llm4llm") from error
    if not is_task_id(task.id):
        raise StageError(f"the live host's task can't be read ({task.id[:100]!r} is no id)", "this is a fault of llm4llm")
    return task
