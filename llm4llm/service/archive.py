"""Uploaded archives: looked at before anything is unpacked, and refused if they could harm."""

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, BinaryIO

from llm4llm.errors import BadArchive, TooLarge
from llm4llm.service.names import checked_name

MAX_RATIO = 200  # unpacked to packed, of one member; text packs 5 to 20 times, zeros 1000 times
_RATIO_FREE_BYTES = 1 << 20  # small members may pack as well as they like
_END = struct.Struct("<4s4H2IH")  # end of central directory, APPNOTE 4.3.16
_END_MARK, _ZIP64_MARK = b"PK\x05\x06", b"PK\x06\x07"
_ZIP64_BYTES = 20
_LONGEST_COMMENT = (1 << 16) - 1
_BYTES_PER_MEMBER = 46 + 400 + 64  # of the central directory: header, longest name, extra fields


@dataclass(frozen=True)
class Part:
    """One uploaded file that can be read more than once."""

    path: str
    open: Callable[[], IO[bytes]]


@contextmanager
def unpacked(file: BinaryIO, max_files: int, max_bytes: int) -> Iterator[tuple[Part, ...]]:
    """The archive's files; BadArchive, BadFileName or TooLarge before any is read."""
    with readable():
        _check_end(file, max_files)
        archive = zipfile.ZipFile(file)
    with archive:
        members = [info for info in archive.infolist() if not info.orig_filename.endswith("/")]
        if len(members) > max_files:
            raise BadArchive(f"it holds more than {max_files} files")
        if sum(info.file_size for info in members) > max_bytes:
            raise TooLarge(f"the archive unpacks to more than {max_bytes} bytes", "leave out what the script does not need")
        yield tuple(_part(archive, info) for info in members)


def _part(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Part:
    path = checked_name(info.orig_filename)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise BadArchive(f"{path} is a link or a device")
    if info.flag_bits & 1:
        raise BadArchive(f"{path} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadArchive(f"{path} is packed in a way other than deflate")
    if info.file_size > max(_RATIO_FREE_BYTES, MAX_RATIO * info.compress_size):
        raise BadArchive(f"{path} unpacks to more than {MAX_RATIO} times its size")

    def opened() -> IO[bytes]:
        with readable():
            return archive.open(info)

    return Part(path, opened)


@contextmanager
def readable() -> Iterator[None]:
    """What the standard library says about a broken archive, as BadArchive."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, struct.error, ValueError, OverflowError) as error:
        raise BadArchive(str(error) or type(error).__name__) from error


def _check_end(file: BinaryIO, max_files: int) -> None:
    """Refuse an archive whose list of members alone would fill the memory: the library reads all of it before it says anything."""
    size = file.seek(0, 2)
    start = max(0, size - _LONGEST_COMMENT - _END.size - _ZIP64_BYTES)
    file.seek(start)
    tail = file.read()
    at = tail.rfind(_END_MARK)
    if at < 0 or len(tail) - at < _END.size:
        raise BadArchive("it is not a zip file")
    _, disk, start_disk, here, total, directory_bytes, _, _ = _END.unpack_from(tail, at)
    if tail[max(0, at - _ZIP64_BYTES) : at].startswith(_ZIP64_MARK) or 0xFFFF in (here, total):
        raise BadArchive("it uses the extension for huge archives")
    if disk or start_disk or here != total:
        raise BadArchive("it is one of several parts")
    if total > 2 * max_files or directory_bytes > 2 * max_files * _BYTES_PER_MEMBER:
        raise BadArchive(f"it holds more than {max_files} files")
    file.seek(0)
