"""Files by the sha256 of their content, on disk."""

import errno
import re
from pathlib import Path

from llm4llm.errors import DiskFull, StoreUnavailable
from llm4llm.kit import sha256_bytes, sha256_file, write_atomic
from llm4llm.store.faults import BlobDamaged

_SHA256 = re.compile(r"[0-9a-f]{64}")


class BlobFolder:
    """Blobs in a folder, spread over 256 sub-folders; equal content is stored once."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, content: bytes) -> str:
        """Store content and return its sha256. A damaged copy is replaced."""
        sha256 = sha256_bytes(content)
        place = self._place(sha256)
        if not _holds(place, sha256):
            try:
                write_atomic(place, content)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFull(f"there is no space left in {self._root}", "free some space, then continue with --resume") from error
                raise StoreUnavailable(f"{place} can't be written ({error.strerror})", "check the folder's owner and rights") from error
        return sha256

    def path(self, sha256: str) -> Path:
        """Where the content lies; BlobDamaged if it is missing or is no longer what was stored."""
        place = self._place(sha256)
        if not _holds(place, sha256):
            raise BlobDamaged(sha256)
        return place

    def get(self, sha256: str) -> bytes:
        """The content itself, verified as it was read."""
        place = self._place(sha256)
        content = place.read_bytes() if place.is_file() else b""
        if sha256_bytes(content) != sha256:
            raise BlobDamaged(sha256)
        return content

    def _place(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is not a sha256")
        return self._root / sha256[:2] / sha256


def _holds(place: Path, sha256: str) -> bool:
    return place.is_file() and sha256_file(place) == sha256
