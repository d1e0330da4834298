"""Names of uploaded files: relative paths that stay below the folder they are laid out in."""

from collections.abc import Iterable

from llm4llm.errors import BadFileName

_LONGEST = 400
_LONGEST_PART = 200  # bytes; file systems take 255, and drafts get a suffix


def checked_name(name: str) -> str:
    """The name without a leading `./`; BadFileName for whatever could leave the folder or can't be a file's name."""
    if not name:
        raise BadFileName(name, "it is empty")
    if len(name) > _LONGEST:
        raise BadFileName(name, f"it is longer than {_LONGEST} characters")
    if "\\" in name:
        raise BadFileName(name, "it holds a backslash")
    if not name.isprintable():
        raise BadFileName(name, "it holds control characters")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadFileName(name, "it is not valid text") from error
    if name.startswith("/") or (len(name) > 1 and name[1] == ":"):
        raise BadFileName(name, "it is absolute")
    plain = name.removeprefix("./")
    for part in plain.split("/"):
        if part in ("", ".", ".."):
            raise BadFileName(name, f"it holds the part {part!r}")
        if part.strip() != part or len(part.encode()) > _LONGEST_PART:
            raise BadFileName(name, "a part of it is too long or has spaces at an end")
    return plain


def check_together(names: Iterable[str]) -> None:
    """BadFileName if two files would lie at one place, or one inside another."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadFileName(name, "it was given twice")
        seen.add(name)
    for name in seen:
        parts = name.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in seen:
                raise BadFileName(name, f"{'/'.join(parts[:end])} is a file")
