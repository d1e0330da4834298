"""One hotspot made reproducible."""

from llm4llm.schema.base import Frozen
from llm4llm.schema.profile import Phase


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
    folder: str | None = None  # where it lies now
    sha256: str | None = None  # of the folder's files, once complete
