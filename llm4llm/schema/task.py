"""One hotspot made reproducible."""

from typing import Annotated

from pydantic import Field

from llm4llm.schema.base import Frozen, Name, Names
from llm4llm.schema.profile import Phase


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
    folder: Annotated[str, Field(max_length=5_000)] | None = None  # where it lies now
    sha256: Name | None = None  # of the folder's files, once complete
