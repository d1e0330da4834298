"""Uploaded scripts and files as a folder of the job's own, as if a user had them there."""

import os
import shutil
import stat
import sys
from pathlib import Path

from llm4llm.errors import InfraError
from llm4llm.kit import fresh_untrusted, remove_untrusted
from llm4llm.sandbox import own_caches, scrubbed
from llm4llm.schema.job import Job
from llm4llm.service.output import own_folder
from llm4llm.store import Store

FOLDER = "work"
_DRAFT = "laid"
_ATTEMPTS = 3
SPARE = "spare"  # temporary files and caches: a confined script can't write into the home folder's


def laid_out(job: Job, folder: Path, store: Store) -> Job:
    """The job with absolute paths, its files lying fresh below `folder`; one that was not uploaded is returned as it is.

    What an earlier attempt left there is removed: the script must find what was handed in and nothing else. A process that outlived that
    attempt may still write there, so files are laid out where only we can, and the whole folder is moved in. Raises BlobDamaged.
    """
    request = job.request
    if not request.uploaded:
        return job
    root = (folder / FOLDER).absolute()
    contents = [(request.script, request.script_sha256), *((file.path, file.sha256) for file in request.files)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own_folder(folder).mkdir(exist_ok=True)
        draft = fresh_untrusted(own_folder(folder), _DRAFT)
        for name, sha256 in contents:
            place = draft / name
            # names were checked when they came in; the database is not trusted with what lies outside the folder
            if os.path.isabs(name) or ".." in Path(name).parts:
                raise InfraError(f"the stored name {name!r} leaves the folder of {job.id}", "submit the job again")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(store.blobs.path(sha256), place)
        _move_in(draft, root)
        _make_spare(folder)
    except OSError as error:
        raise InfraError(
            f"the files of {job.id} can't be laid out in {root} ({error.strerror})", "free some space, check its rights"
        ) from error
    changed = {
        "script": str(root / request.script),
        "working_directory": str(root),
        "python": request.python or sys.executable,
        "environment": {**scrubbed(os.environ), **_caches(folder.absolute() / SPARE), **request.environment},
    }
    return job.model_copy(update={"request": request.model_copy(update=changed)})


def _move_in(draft: Path, root: Path) -> None:
    """Put a folder in the place of whatever lies there. No link is followed: rename replaces names, and a folder replaces no link."""
    for attempt in range(_ATTEMPTS):
        remove_untrusted(root)
        try:
            draft.rename(root)
            break
        except OSError:
            if attempt + 1 == _ATTEMPTS:
                raise


def _make_spare(folder: Path) -> None:
    """What lies in it stays, for later attempts; only another kind of thing is replaced."""
    try:
        kept = stat.S_ISDIR((folder / SPARE).lstat().st_mode)
    except FileNotFoundError:
        kept = False
    if not kept:
        fresh_untrusted(folder, SPARE)


def _caches(folder: Path) -> dict[str, str]:
    """Where libraries put what they would else put under the home folder. Models that lie in a hub's cache stay readable where they are."""
    hub = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface")
    return {"HF_HOME": hub, "XDG_CACHE_HOME": str(folder / "cache"), **own_caches(folder)}
