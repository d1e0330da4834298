"""One hotspot made reproducible."""

import re
from typing import Annotated

from pydantic import Field

from llm4llm.schema.base import Frozen, Name, Names
from llm4llm.schema.profile import Phase

_ID = re.compile(r"[a-z]{1,10}_[0-9A-Za-z_]{1,50}", re.ASCII)


def is_task_id(text: str) -> bool:
    """Whether it can be a task's id, and with that the name of a folder."""
    return _ID.fullmatch(text) is not None


class Task(Frozen):
    """Facts of a task folder; the folder holds module, calls and source."""

    schema_version: int = 1
    id: Name
    hotspot: Name
    module_class: Name
    module_path: Name
    root: Name
    phase: Phase
    share: float
    family: Name
    calls: int  # captured calls in the folder
    device: Name
    dtypes: Names
    target: Name
    # where it lies now: said by whoever put it there, never by the process that wrote it
    folder: Annotated[str, Field(max_length=5_000)] | None = None
    sha256: Name | None = None  # of the folder's files, once complete
