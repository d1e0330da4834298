"""Whether two runs of a script printed the same."""

import re

_NUMBER = re.compile(rb"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def difference(expected: bytes, found: bytes, again: bytes | None) -> str | None:
    """None if `found` is what a script printed before, else the first difference in words.

    `again` is what a second run under the same conditions as `expected` printed: in lines that differ between those two, numbers may be
    any; everything else must still be equal.
    """
    if found == expected:
        return None
    lines, theirs = expected.split(b"\n"), found.split(b"\n")
    others = again.split(b"\n") if again is not None else lines
    if len(lines) != len(theirs):
        return f"{len(theirs)} lines instead of {len(lines)}"
    for number, (line, their, other) in enumerate(zip(lines, theirs, others if len(others) == len(lines) else lines), 1):
        if their == line or (line != other and _NUMBER.sub(b"#", their) == _NUMBER.sub(b"#", line)):
            continue
        return f"line {number} is {_shown(their)} instead of {_shown(line)}"
    return None


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
