"""Jobs of a server: hand in, follow, cancel, read, download."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from llm4llm.cli import say
from llm4llm.cli.live import watching
from llm4llm.client import Client
from llm4llm.errors import BadArguments
from llm4llm.kit import format_duration, parse_duration
from llm4llm.schema.event import Event


@dataclass(frozen=True)
class Submission:
    """What the user typed, not yet checked."""

    script: Path
    arguments: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    environment: tuple[str, ...] = ()
    budget: str = "10m"
    idempotency_key: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def submit(wanted: Submission, server: str | None, follow: bool, as_json: bool) -> int:
    """Print the job's id, or follow it to its end; exit code 1 for a followed job that did not succeed."""
    with Client(server) as client:
        job = client.submit(
            wanted.script,
            wanted.arguments,
            wanted.files,
            wanted.idempotency_key,
            budget=parse_duration(wanted.budget),
            environment=_variables(wanted.environment),
            **wanted.options,
        )
        if not follow:
            say.result(json.dumps(job) if as_json else str(job["id"]))
            return say.EXIT_OK
        job = _followed(client, job)
        return _ended(job, as_json)


def status(job_id: str, server: str | None, as_json: bool) -> int:
    """One job as it is now."""
    with Client(server) as client:
        job = client.job(job_id)
    if as_json:
        say.result(json.dumps(job))
    else:
        _tell(job)
    return say.EXIT_OK


def cancel(job_id: str, server: str | None, as_json: bool) -> int:
    """Ask for the job to end; one that had ended stays as it was."""
    with Client(server) as client:
        job = client.cancel(job_id)
    if as_json:
        say.result(json.dumps(job))
    elif job["status"] in ("queued", "running"):
        say.result(f"{job['id']} ends after its current step")
    else:
        _tell(job)
    return say.EXIT_OK


def logs(job_id: str, server: str | None, stream: Literal["events", "stdout", "stderr"], as_json: bool) -> int:
    """Text of the job; with --json one object that holds it."""
    with Client(server) as client:
        text = client.logs(job_id, stream)
    say.result(json.dumps({"job": job_id, "stream": stream, "text": text}) if as_json else text.rstrip("\n"))
    return say.EXIT_OK


def download(job_id: str, server: str | None, out: Path | None, as_json: bool) -> int:
    """The bundle in a file, verified; the file's path on stdout."""
    place = out or Path(f"bundle-{job_id}.zip")
    with Client(server) as client:
        path = client.download(job_id, place / f"bundle-{job_id}.zip" if place.is_dir() else place)
    say.result(json.dumps({"job": job_id, "bundle": str(path), "bytes": path.stat().st_size}) if as_json else str(path))
    return say.EXIT_OK


def jobs(limit: int, server: str | None, as_json: bool) -> int:
    """Newest first; one JSON object per line with --json."""
    with Client(server) as client:
        found = list(client.jobs(limit=limit))
    if as_json:
        for job in found:
            say.result(json.dumps(job))
        return say.EXIT_OK
    if not found:
        say.note("the server has no job of yours yet: hand one in with llm4llm submit SCRIPT.py")
        return say.EXIT_OK
    table = Table("job", "created", "status", "stage", "script", "reason", box=None, pad_edge=False)
    for job in found:
        reason = job["reason"]["text"] if job["reason"] else ""
        table.add_row(*say.cells(job["id"], job["created_at"][:19], job["status"], job["stage"] or "", job["script"], reason))
    say.tables().print(table)
    return say.EXIT_OK


def _followed(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    """The job at its end, its events shown on stderr as they come."""
    say.note(f"{job['id']} is handed in; Ctrl-C stops following, not the job")
    try:
        with watching(job["script"], job["spend"]["budget_seconds"]) as progress:
            for event in client.events(job["id"]):
                if event["event"] == "end":
                    return dict(event["data"])
                progress(Event.model_validate({name: event["data"].get(name) for name in Event.model_fields}))
    except KeyboardInterrupt:
        say.note(f"no longer following; look at it with: llm4llm status {job['id']} --server {client.server}")
        raise say.Interrupted from None
    return client.job(job["id"])


def _ended(job: dict[str, Any], as_json: bool) -> int:
    if as_json:
        say.result(json.dumps(job))
    else:
        _tell(job)
    return say.EXIT_OK if job["status"] == "succeeded" else say.EXIT_FAILED


def _tell(job: dict[str, Any]) -> None:
    spent, budget = (format_duration(job["spend"][name]) for name in ("seconds", "budget_seconds"))
    stage = f", {job['stage']}" if job["stage"] and job["status"] == "running" else ""
    say.line(f"{job['id']}  {job['status']}{stage}  {job['script']}  {100 * job['progress']:.0f} %, {spent} of {budget} used")
    best = job["best"]["end_to_end_speedup"] or job["best"]["module_speedup"]
    if best is not None:
        so_far = "" if job["status"] in ("succeeded", "failed", "cancelled") else " so far"
        say.line(f"  best{so_far}: {best:.2f}x {'end to end' if job['best']['end_to_end_speedup'] else 'on its module'}")
    if job["reason"]:
        say.line(f"  {job['reason']['code']}: {job['reason']['text']}")
        if job["reason"]["code"] == "accepted":
            say.line(f"  get the bundle with: llm4llm download {job['id']}")


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    variables = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise BadArguments(f"--env {item!r} sets nothing", "write --env NAME=VALUE: a server can't copy from here")
        variables[name] = value
    return variables
