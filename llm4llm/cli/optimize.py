"""optimize: submit or continue a job, watch it, deliver its results."""

import shlex
from pathlib import Path
from typing import Any

from llm4llm.cli import say
from llm4llm.cli.deliver import check_output_folder, deliver, output_folder
from llm4llm.cli.live import watching
from llm4llm.cli.opened import Opened, opened
from llm4llm.cli.request import Options, make_request
from llm4llm.cli.summary import summary
from llm4llm.errors import UserError
from llm4llm.kit import canonical_json
from llm4llm.schema.job import Job, JobStatus
from llm4llm.service.jobs import submit
from llm4llm.service.report import job_report
from llm4llm.store import Queue
from llm4llm.worker.local import run_job


def start(options: Options, out: Path | None, as_json: bool) -> int:
    """A new job, to its end."""
    with opened() as local:
        request = make_request(options, local.settings.home)
        check_output_folder(out)
        job = submit(request, local.store, local.clock, local.rng, Queue.FOREGROUND)
        return _to_its_end(local, job, out, as_json)


def resume(job_id: str, out: Path | None, as_json: bool) -> int:
    """A stored job from where it was; one that has ended is only reported again."""
    with opened() as local:
        job = local.store.jobs.get(job_id)
        check_output_folder(out)
        return _to_its_end(local, job, out, as_json)


def work(local: Opened, job: Job, out: Path | None = None) -> Job:
    """Run a job in this process with its progress on stderr. After Ctrl-C or SIGTERM the stored job can be continued, and we say how."""
    if job.status in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED):
        return job
    try:
        with watching(Path(job.request.script).name, job.request.budget.seconds) as progress:
            return run_job(job.id, local.settings, progress)
    except KeyboardInterrupt:
        folder = f" --out {shlex.quote(str(out))}" if out is not None else ""
        say.note(f"interrupted; continue with: llm4llm optimize --resume {job.id}{folder}")
        raise say.Interrupted from None


def exit_code(job: Job) -> int:
    """0 for a job that ran to its end, 2 for input that could not be used, 1 for every other failure."""
    if job.status is JobStatus.SUCCEEDED:
        return say.EXIT_OK
    return say.EXIT_UNUSABLE if unusable(job) else say.EXIT_FAILED


def unusable(job: Job) -> bool:
    """True if the job failed before anything of it ran, because of what was handed in."""
    return job.reason is not None and job.stage is None and job.reason.code in _codes(UserError)


def _to_its_end(local: Opened, job: Job, out: Path | None, as_json: bool) -> int:
    job = work(local, job, out)
    if unusable(job):
        if as_json:
            say.result(canonical_json(job_report(local.store, job.id)))
        say_reason(job)
        return exit_code(job)
    folder = output_folder(out, job)
    report = deliver(local, job, folder)
    _print(report, folder, as_json)
    if job.status is not JobStatus.SUCCEEDED:
        say_reason(job)
    return exit_code(job)


def say_reason(job: Job) -> None:
    """Why the job failed, on stderr."""
    if job.reason is not None:
        say.note(job.reason.text)


def _print(report: dict[str, Any], folder: Path, as_json: bool) -> None:
    if as_json:
        say.result(canonical_json(report))
        return
    for line in summary(report, folder):
        say.line(line)


def _codes(family: type[UserError]) -> set[str]:
    return {family.code}.union(*(_codes(kind) for kind in family.__subclasses__()))
