"""sha256 as lower-case hex."""

import hashlib
from pathlib import Path


def sha256_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sha256_text(text: str) -> str:
    """Hash of the UTF-8 form."""
    return sha256_bytes(text.encode())


def sha256_file(path: Path) -> str:
    """Hash of a file's content, read in blocks; OSError if it can't be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
