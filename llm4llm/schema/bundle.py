"""The downloadable archive."""

from llm4llm.schema.base import Frozen


class Bundle(Frozen):
    """An archive in the blob store."""

    sha256: str
    bytes: int
    patches: int
    manifest_sha256: str
