"""What a finished job leaves in the user's folder: report, bundle, the script's own output."""

import shutil
from pathlib import Path
from typing import Any

from llm4llm.cli.opened import Opened
from llm4llm.errors import BadArguments, InfraError
from llm4llm.kit import copy_atomic, open_untrusted
from llm4llm.schema.job import Job
from llm4llm.service.report import job_report
from llm4llm.web.report import write_report
from llm4llm.worker.scratch import job_folder

BUNDLE = "bundle.zip"
SCRIPT_OUTPUT = ("script.stdout", "script.stderr")


def output_folder(out: Path | None, job: Job) -> Path:
    """The folder that was asked for, or one below llm4llm-out that carries the job's id."""
    return (out or Path("llm4llm-out") / job.id).absolute()


def check_output_folder(out: Path | None) -> None:
    """BadArguments if results could not be written there: better said before the work than after it."""
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise BadArguments(f"--out {out} is a file", "name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArguments(f"--out {out} can't be made ({error.strerror})", "name a folder that can be written") from error


def deliver(local: Opened, job: Job, folder: Path) -> dict[str, Any]:
    """Write everything that the job has, each file whole or not at all; the report. A bundle of an earlier job is removed."""
    report = job_report(local.store, job.id)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        packed = report["bundle"]
        if packed is None:
            (folder / BUNDLE).unlink(missing_ok=True)
        else:
            copy_atomic(local.store.blobs.path(packed["sha256"]), folder / BUNDLE)
        copy_script_output(local, job, folder)
        write_report(report, folder)
    except OSError as error:
        fix = f"free the place and write it again with: llm4llm optimize --resume {job.id} --out DIR"
        raise InfraError(f"the results can't be written to {folder} ({error.strerror})", fix) from error
    return report


def copy_script_output(local: Opened, job: Job, folder: Path) -> None:
    """The script's own standard output and error, as far as it came; absent if it was never run."""
    for name in SCRIPT_OUTPUT:
        try:
            source = open_untrusted(job_folder(local.settings.home, job.id), name)
        except FileNotFoundError:
            continue
        with source, (folder / name).open("wb") as target:
            shutil.copyfileobj(source, target)
