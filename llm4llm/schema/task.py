"""One hotspot made reproducible."""

import re

from llm4llm.schema.base import Frozen
from llm4llm.schema.profile import Phase

_ID = re.compile(r"[a-z]{1,10}_[0-9A-Za-z_]{1,50}", re.ASCII)


def is_task_id(text: str) -> bool:
    """Whether it can be a task's id, and with that the name of a folder."""
    return _ID.fullmatch(text) is not None


class Task(Frozen):
    """Facts of a task folder; the folder holds module, calls and source."""

    schema_version: int = 1
    id: str
    hotspot: str
    module_class: str
    module_path: str
    root: str
    phase: Phase
    share: float
    family: str
    calls: int  # captured calls in the folder
    device: str
    dtypes: tuple[str, ...]
    target: str
    folder: str | None = None  # where it lies now: said by whoever put it there, never by the process that wrote it
    sha256: str | None = None  # of the folder's files, once complete
