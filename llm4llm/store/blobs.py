"""Files by the sha256 of their content: in a folder, or in any bucket that fsspec reaches."""

import errno
import hashlib
import os
import re
import secrets
from pathlib import Path
from typing import IO, Any, Protocol

import fsspec

from llm4llm.errors import BadSettings, DiskFull, StoreUnavailable
from llm4llm.kit import sha256_bytes, sha256_file, write_atomic
from llm4llm.settings import default_home
from llm4llm.store.faults import BlobDamaged

_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOCK = 1 << 20


class Blobs(Protocol):
    """Equal content is stored once; what is read has been verified."""

    def put(self, content: bytes) -> str:
        """Store content and return its sha256. A damaged copy is replaced."""
        ...

    def put_file(self, file: IO[bytes]) -> str:
        """The same for the rest of an open file, read block by block."""
        ...

    def path(self, sha256: str) -> Path:
        """A local file with the content, not to be changed; BlobDamaged if it is missing or is no longer what was stored."""
        ...

    def get(self, sha256: str) -> bytes:
        """The content itself, verified as it was read."""
        ...


def open_blobs(root: Path | str) -> Blobs:
    """A folder for a path or a file:// URL, else a bucket with a verified copy of what was read in the home folder."""
    if isinstance(root, Path):
        return BlobFolder(root)
    if root.startswith("file://"):
        return BlobFolder(Path(root.removeprefix("file://")))
    try:
        system, place = fsspec.core.url_to_fs(root)
    except (ImportError, ValueError) as error:
        raise BadSettings(
            f"blobs can't be kept in {root} ({error})", "install fsspec's package for it, or correct LLM4LLM_BLOB_ROOT"
        ) from error
    return BlobBucket(system, place, BlobFolder(default_home() / "blob-cache"))


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
                raise self._fault(place, error) from error
        return sha256

    def put_file(self, file: IO[bytes]) -> str:
        """Store the rest of an open file, hashed while it is written."""
        draft = self._root / f".{secrets.token_hex(8)}.part"
        digest = hashlib.sha256()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            with draft.open("xb") as copy:
                while block := file.read(_BLOCK):
                    digest.update(block)
                    copy.write(block)
                copy.flush()
                os.fsync(copy.fileno())
            place = self._place(digest.hexdigest())
            if not _holds(place, digest.hexdigest()):
                place.parent.mkdir(parents=True, exist_ok=True)
                draft.replace(place)
        except OSError as error:
            raise self._fault(draft, error) from error
        finally:
            draft.unlink(missing_ok=True)
        return digest.hexdigest()

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
        return self._root / _key(sha256)

    def _fault(self, place: Path, error: OSError) -> DiskFull | StoreUnavailable:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(f"there is no space left in {self._root}", "free some space, then continue with --resume")
        return StoreUnavailable(f"{place} can't be written ({error.strerror})", "check the folder's owner and rights")


class BlobBucket:
    """Blobs below a prefix of an fsspec file system; `copies` holds what was read or written here."""

    def __init__(self, system: Any, prefix: str, copies: BlobFolder) -> None:
        self._system = system
        self._prefix = prefix.rstrip("/")
        self._copies = copies

    def put(self, content: bytes) -> str:
        """Store content and return its sha256."""
        return self._uploaded(self._copies.put(content))

    def put_file(self, file: IO[bytes]) -> str:
        """Store the rest of an open file."""
        return self._uploaded(self._copies.put_file(file))

    def path(self, sha256: str) -> Path:
        """A local copy; BlobDamaged if the bucket has no content with that hash."""
        _key(sha256)
        try:
            return self._copies.path(sha256)
        except BlobDamaged:
            return self._fetched(sha256)

    def get(self, sha256: str) -> bytes:
        return self.path(sha256).read_bytes()

    def _fetched(self, sha256: str) -> Path:
        try:
            with self._system.open(self._place(sha256), "rb") as file:
                found = self._copies.put_file(file)
        except FileNotFoundError as error:
            raise BlobDamaged(sha256) from error
        except OSError as error:
            raise self._fault(error) from error
        if found != sha256:
            raise BlobDamaged(sha256)
        return self._copies.path(sha256)

    def _uploaded(self, sha256: str) -> str:
        """Written under a name of its own and then moved, so that the final name never holds a part, whatever the file system."""
        local, place = self._copies.path(sha256), self._place(sha256)
        try:
            if self._system.exists(place) and self._system.size(place) == local.stat().st_size:
                return sha256
            draft = f"{place}.{secrets.token_hex(6)}.part"
            self._system.makedirs(place.rpartition("/")[0], exist_ok=True)
            self._system.put_file(str(local), draft)
            self._system.mv(draft, place)
        except OSError as error:
            raise self._fault(error) from error
        return sha256

    def _place(self, sha256: str) -> str:
        return f"{self._prefix}/{_key(sha256)}"

    def _fault(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(f"the bucket {self._prefix} can't be used ({error})", "check LLM4LLM_BLOB_ROOT, its rights and the network")


def _key(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is not a sha256")
    return f"{sha256[:2]}/{sha256}"


def _holds(place: Path, sha256: str) -> bool:
    return place.is_file() and sha256_file(place) == sha256
