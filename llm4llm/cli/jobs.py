"""Stored jobs: a list, and one of them in full."""

import json
from typing import Any

from rich.table import Table

from llm4llm.cli import say
from llm4llm.cli.opened import Opened, opened
from llm4llm.kit import format_duration
from llm4llm.schema.job import Job, JobStatus
from llm4llm.schema.run import StageRun
from llm4llm.service.view import Views

_AT_ONCE = 500  # ids in one question; databases limit parameters


def jobs(limit: int, as_json: bool) -> int:
    """Newest first; one JSON object per line with --json."""
    with opened() as local, local.store.reading():
        found = local.store.jobs.latest(limit)
        views = _views(local, *found) if as_json else []
    if as_json:
        for view in views:
            say.result(json.dumps(view))
        return say.EXIT_OK
    if not found:
        say.note("no job is stored yet: start one with llm4llm optimize SCRIPT.py")
        return say.EXIT_OK
    table = Table("job", "created", "status", "stage", "script", "reason", box=None, pad_edge=False)
    for job in found:
        reason = job.reason.text if job.reason else ""
        stage = job.stage.value if job.stage else ""
        table.add_row(*say.cells(job.id, job.created_at[:19], job.status.value, stage, job.request.script, reason))
    say.tables().print(table)
    return say.EXIT_OK


def status(job_id: str, as_json: bool) -> int:
    """State, reason and stages of one job; with --json what a server says of it, and its stages."""
    with opened() as local, local.store.reading():
        job = local.store.jobs.get(job_id)
        runs = local.store.stages.runs(job_id)
        (view,) = _views(local, job) if as_json else ({},)
    if as_json:
        stages = [{"stage": run.stage.value, "attempt": run.attempt, "status": run.status, "seconds": run.seconds} for run in runs]
        say.result(json.dumps({**view, "stages": stages}))
        return say.EXIT_OK
    say.line(f"{job.id}  {job.status.value}  {job.request.script} {' '.join(job.request.arguments)}".rstrip())
    for run in runs:
        say.line(_line(run))
    if job.reason is not None:
        say.line(f"  {job.reason.code}: {job.reason.text}")
    ended = job.status not in (JobStatus.QUEUED, JobStatus.RUNNING)
    if job.request.uploaded:
        hint = f"get the bundle with: llm4llm download {job.id}" if ended else f"a worker runs it; see llm4llm logs {job.id}"
        if not ended or (job.reason is not None and job.reason.code == "accepted"):
            say.line(f"  {hint}")
    elif not ended:
        say.line(f"  continue with: llm4llm optimize --resume {job.id}")
    return say.EXIT_OK


def _line(run: StageRun) -> str:
    took = format_duration(run.seconds) if run.seconds is not None else ""
    why = f"  {run.reason.text}" if run.reason else ""
    return f"  {run.stage.value:<11} attempt {run.attempt}  {run.status:<9} {took}{why}".rstrip()


def _views(local: Opened, *jobs: Job) -> list[dict[str, Any]]:
    """Jobs in the shape in which a server gives them."""
    views = Views(local.store, local.clock)
    found = []
    for start in range(0, len(jobs), _AT_ONCE):
        part = jobs[start : start + _AT_ONCE]
        marks = local.store.listing.marks(tuple(job.id for job in part))
        found += [views.of(job.id, marks[job.id]).model_dump(mode="json") for job in part]
    return found
