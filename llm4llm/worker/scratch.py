"""The folder of a job: what its processes write, and what of it stays once the job has ended."""

import contextlib
import shutil
from pathlib import Path

from llm4llm.errors import JobNotResumable, UnknownJob
from llm4llm.schema.job import Job, JobStatus, StageName
from llm4llm.store import Store
from llm4llm.worker.lock import job_lock

_KEPT = {"lock", "script.stdout", "script.stderr"}
_TASKS = "tasks"


def job_folder(home: Path, job_id: str) -> Path:
    return home / "jobs" / job_id


def clear_ended(folder: Path, job: Job) -> None:
    """Remove what nobody needs after the end: tasks alone may be gigabytes. They stay if they are what the job was for."""
    for entry in _unneeded(folder, job):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def clear_left(home: Path, store: Store) -> int:
    """Clear the folders of ended jobs whose process was killed before it could; how many there were."""
    root = home / "jobs"
    cleared = 0
    for folder in root.iterdir() if root.is_dir() else ():
        with contextlib.suppress(UnknownJob, JobNotResumable, OSError):
            if {entry.name for entry in folder.iterdir()} <= _KEPT:
                continue
            job = store.jobs.get(folder.name)
            if job.status in (JobStatus.QUEUED, JobStatus.RUNNING) or not _unneeded(folder, job):
                continue
            with job_lock(folder, job.id):
                clear_ended(folder, job)
            cleared += 1
    return cleared


def _unneeded(folder: Path, job: Job) -> list[Path]:
    kept = _KEPT | {_TASKS} if job.request.stop_after is StageName.TASK else _KEPT
    return [entry for entry in folder.iterdir() if entry.name not in kept]
