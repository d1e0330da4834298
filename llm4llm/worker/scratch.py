"""The folder of a job: what its processes write, and what of it stays once the job has ended."""

import shutil
from pathlib import Path

from llm4llm.schema.job import Job, StageName
from llm4llm.service.output import job_folder, own_folder

__all__ = ["clear_ended", "job_folder", "own_folder"]

KEPT = {"script.stdout", "script.stderr"}
_LOCK = "lock"
_TASKS = "tasks"


def clear_ended(folder: Path, job: Job) -> None:
    """Remove what nobody needs after the end: tasks alone may be gigabytes. They stay if they are what the job was for."""
    own = own_folder(folder)
    ours = [entry for entry in own.iterdir() if entry.name != _LOCK] if own.is_dir() else []
    for entry in (*unneeded(folder, job), *ours):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def unneeded(folder: Path, job: Job) -> list[Path]:
    """Everything in a folder that an ended job does not keep."""
    kept = KEPT | {_TASKS} if job.request.stop_after is StageName.TASK else KEPT
    return [entry for entry in folder.iterdir() if entry.name not in kept]
