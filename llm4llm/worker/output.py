"""Whether two runs of a script printed the same."""

import re
from collections.abc import Iterator

from llm4llm.kit import counted, printable

_NUMBER = re.compile(rb"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
MOST_BYTES = 16 << 20  # of texts that are compared line by line; equal ones may have any length
_MOST_LINES = 1_000_000
_LONGEST_LINE = 64 << 10  # in which numbers may differ


def difference(expected: bytes, found: bytes, again: bytes | None) -> str | None:
    """None if `found` is what a script printed before, else the first difference in words.

    `again` is what a second run under the same conditions as `expected` printed: in lines that differ between those two, numbers may be
    any; everything else must still be equal.
    """
    if found == expected:
        return None
    if max(len(expected), len(found)) > MOST_BYTES:
        return f"it differs, and is too long to be compared line by line ({MOST_BYTES >> 20} MiB at most)"
    count, theirs = _lines(expected), _lines(found)
    if count != theirs:
        return f"{counted(theirs, 'line')} instead of {count:,}"
    if count > _MOST_LINES:
        return f"it differs, and has too many lines to be compared one by one ({_MOST_LINES:,} at most)"
    comparable = again is not None and len(again) <= MOST_BYTES and _lines(again) == count
    others = _each(again if again is not None and comparable else expected)
    for number, (line, their, other) in enumerate(zip(_each(expected), _each(found), others, strict=True), 1):
        if their == line or (line != other and _same_but_numbers(line, their)):
            continue
        return f"line {number} is {_shown(their)} instead of {_shown(line)}"
    return None


def _lines(text: bytes) -> int:
    return text.count(b"\n") + 1


def _each(text: bytes) -> Iterator[bytes]:
    """One line after the other: a list of all of them takes many times the text's size."""
    start = 0
    while (end := text.find(b"\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _same_but_numbers(line: bytes, their: bytes) -> bool:
    if max(len(line), len(their)) > _LONGEST_LINE:
        return False
    return _NUMBER.sub(b"#", their) == _NUMBER.sub(b"#", line)


def _shown(line: bytes) -> str:
    text = line[:400].decode(errors="replace")
    return f"'{printable(text if len(text) <= 60 else f'{text[:57]}...')}'"
