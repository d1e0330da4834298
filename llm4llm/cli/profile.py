"""profile and tasks: the first stages of a job, for people who want to look or to write candidates themselves."""

import json
import shutil
from pathlib import Path
from typing import Any

from rich.table import Table

from llm4llm.cli import say
from llm4llm.cli.deliver import check_output_folder, deliver
from llm4llm.cli.opened import opened
from llm4llm.cli.optimize import exit_code, say_reason, work
from llm4llm.cli.request import Options, make_request
from llm4llm.kit import canonical_json, write_atomic
from llm4llm.schema.job import Job, JobStatus
from llm4llm.schema.profile import Hotspot, ProfileReport
from llm4llm.schema.results import Results
from llm4llm.schema.task import Task
from llm4llm.service.jobs import submit
from llm4llm.store import Queue


def profile(options: Options, out: Path | None, as_json: bool) -> int:
    """The hotspot table, largest share first, also of a script that failed after its models had run."""
    with opened() as local:
        request = make_request(options, local.settings.home)
        check_output_folder(out)
        job = work(local, submit(request, local.store, local.clock, local.rng, Queue.FOREGROUND))
        results = local.store.stages.results(job.id)
        if out is not None and job.stage is not None:
            deliver(local, job, out.absolute())
    if as_json:
        say.result(canonical_json(_json(job, results)))
    elif results.profile is not None:
        _print(results.profile)
    _say_end(job, results)
    return exit_code(job)


def tasks(options: Options, out: Path) -> int:
    """Task folders in `out`, each complete or absent; one JSON line each on stdout and nothing else there."""
    with opened() as local:
        request = make_request(options, local.settings.home)
        check_output_folder(out)
        job = work(local, submit(request, local.store, local.clock, local.rng, Queue.FOREGROUND))
        results = local.store.stages.results(job.id)
        selection = results.task
        for task in selection.tasks if selection else ():
            _move(task, out.absolute() / task.id)
            facts = {
                "id": task.id,
                "module_path": task.module_path,
                "module_class": task.module_class,
                "phase": task.phase,
                "share": task.share,
            }
            say.result(json.dumps({**facts, "folder": str(out.absolute() / task.id)}))
    _say_skipped(results)
    _say_end(job, results)
    return exit_code(job)


def _say_skipped(results: Results) -> None:
    """One line per kind of reason."""
    by_code: dict[str, list[str]] = {}
    for reason in results.task.skipped.values() if results.task else ():
        by_code.setdefault(reason.code, []).append(reason.text)
    for texts in by_code.values():
        more = f" (and {len(texts) - 1} more like this)" if len(texts) > 1 else ""
        say.note(f"skipped: {texts[0]}{more}")


def _move(task: Task, place: Path) -> None:
    """Folders hold weights: they are moved, not kept twice. In its place a folder is complete or absent."""
    if task.folder is None:
        raise AssertionError(f"{task.id} was stored without its folder")
    draft = place.with_name(f".{place.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.move(task.folder, draft)
    shutil.rmtree(place, ignore_errors=True)
    facts = json.loads((draft / "task.json").read_text(encoding="utf-8"))
    # the live host does not know for which target a job is
    write_atomic(draft / "task.json", json.dumps({**facts, "target": task.target}, indent=1))
    draft.rename(place)


def _say_end(job: Job, results: Results) -> None:
    for note in results.capture.notes if results.capture else ():
        say.note(note.text)
    if job.status is not JobStatus.SUCCEEDED or (job.reason is not None and job.reason.code != "stopped_as_asked"):
        say_reason(job)


def _json(job: Job, results: Results) -> dict[str, Any]:
    report = results.profile
    return {
        "job": job.id,
        "status": job.status.value,
        "reason": job.reason.model_dump(mode="json") if job.reason else None,
        "script": results.capture.end.model_dump(mode="json") if results.capture else None,
        "environment": results.capture.environment.model_dump(mode="json") if results.capture else None,
        "end_to_end": {**report.end_to_end.model_dump(mode="json"), "median_ms": report.end_to_end.median_ms} if report else None,
        "hotspots": [spot.model_dump(mode="json") for spot in report.hotspots] if report else [],
        "phases": [phase.model_dump(mode="json") for phase in report.phases] if report else [],
        "method": report.method if report else "",
        "coverage": report.coverage if report else None,
        "partial": report.partial if report else False,
    }


def _print(report: ProfileReport) -> None:
    on_device = any(spot.device_ms is not None for spot in report.hotspots)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("module family")
    table.add_column("phase")
    table.add_column("where", overflow="fold")
    for name in ("calls", "share", "self", "device ms" if on_device else "host ms", "ceiling"):
        table.add_column(name, justify="right")
    table.add_column("bound")
    table.add_column("note", overflow="fold")
    for spot in sorted(report.hotspots, key=lambda spot: -spot.share):
        table.add_row(*_row(spot, on_device))
    console = say.tables()
    console.print(table)
    if report.end_to_end.samples_ms:
        partial = "; partial" if report.partial else ""
        passes = len(report.end_to_end.samples_ms)
        console.print(
            f"one pass over the workload: {report.end_to_end.median_ms:,.1f} ms, median of {passes} passes{partial}", highlight=False
        )
    console.print(
        f"shares of nested families overlap, self shares do not; {100 * report.coverage:.0f} % of the driver calls' time was replayed",
        highlight=False,
    )


def _row(spot: Hotspot, on_device: bool) -> tuple[str, ...]:
    time_ms = spot.device_ms if on_device else spot.host_ms
    return (
        spot.module_class,
        spot.phase,
        _where(spot),
        str(spot.calls),
        f"{100 * spot.share:.1f} %",
        f"{100 * spot.self_share:.1f} %",
        f"{time_ms:,.2f}" if time_ms is not None else "",
        f"{spot.ceiling:.2f}x",
        spot.bound,
        spot.refusal.text if spot.refusal else "",
    )


def _where(spot: Hotspot) -> str:
    """The first instance, and how many more there are."""
    first = spot.paths[0] or "the model itself" if spot.paths else ""
    return f"{first} +{len(spot.paths) - 1}" if len(spot.paths) > 1 else first
