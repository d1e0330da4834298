"""Load a candidate file as a module."""

from pathlib import Path
from types import ModuleType


def load_candidate(path: Path | str, sha256: str | None = None) -> ModuleType:
    """The file's module under a name made from its content hash; equal content is loaded once per process.

    The file must stay on disk: Triton reads kernels' source from it. Raises Refused if the content is not `sha256` or lacks `forward`;
    whatever the file raises on import passes through.
    """
    raise NotImplementedError
