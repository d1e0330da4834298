"""The folder of a job: what its processes write, and what of it stays once the job has ended."""

import os
from pathlib import Path

from llm4llm.kit import clear_untrusted
from llm4llm.schema.job import Job, StageName
from llm4llm.service.output import job_folder, own_folder
from llm4llm.stages.tools import TASKS

__all__ = ["clear_ended", "job_folder", "own_folder", "unneeded"]

_KEPT = frozenset({"script.stdout", "script.stderr"})
_LOCK = "lock"


def clear_ended(folder: Path, job: Job) -> None:
    """Remove what nobody needs after the end: tasks alone may be gigabytes. They stay if they are what the job was for."""
    clear_untrusted(own_folder(folder), _kept_own(job))
    clear_untrusted(folder, _KEPT)


def unneeded(folder: Path, job: Job | None) -> bool:
    """Whether there is anything that an ended job does not keep; without a job, anything that not every one of them keeps."""
    return _holds_more(folder, _KEPT) or _holds_more(own_folder(folder), _kept_own(job))


def _kept_own(job: Job | None) -> frozenset[str]:
    return frozenset({_LOCK, TASKS} if job is not None and job.request.stop_after is StageName.TASK else {_LOCK})


def _holds_more(folder: Path, kept: frozenset[str]) -> bool:
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        return any(entry.name not in kept for entry in entries)
