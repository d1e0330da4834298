"""Whether two runs of a script printed the same."""

import re
from collections.abc import Iterator

_NUMBER = re.compile(rb"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def difference(expected: bytes, found: bytes, again: bytes | None) -> str | None:
    """None if `found` is what a script printed before, else the first difference in words.

    `again` is what a second run under the same conditions as `expected` printed: in lines that differ between those two, numbers may be
    any; everything else must still be equal.
    """
    if found == expected:
        return None
    count, theirs = expected.count(b"\n"), found.count(b"\n")
    if count != theirs:
        return f"{theirs + 1} lines instead of {count + 1}"
    others = again if again is not None and again.count(b"\n") == count else expected
    for number, (line, their, other) in enumerate(zip(_lines(expected), _lines(found), _lines(others)), 1):
        if their == line or (line != other and _NUMBER.sub(b"#", their) == _NUMBER.sub(b"#", line)):
            continue
        return f"line {number} is {_shown(their)} instead of {_shown(line)}"
    return None


def _lines(text: bytes) -> Iterator[bytes]:
    """One at a time: a list of all of them may take a hundred times the memory of the text."""
    start = 0
    while (end := text.find(b"\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _shown(line: bytes) -> str:
    text = line[:1000].decode(errors="replace")
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
