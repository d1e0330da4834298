"""Durations as people write them."""

import re

from llm4llm.errors import BadArguments

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_FIX = "write it like 90s, 10m or 1h30m"


def parse_duration(text: str) -> float:
    """Seconds of "90s", "10m", "1h30m" or a plain number of seconds; BadArguments for anything else and for zero."""
    compact = text.strip().lower().replace(" ", "")
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        seconds = float(compact)
    else:
        parts = _PART.findall(compact)
        units = [unit for _, unit in parts]
        if not parts or "".join(number + unit for number, unit in parts) != compact:
            raise BadArguments(f"{text!r} is not a duration", _FIX)
        if len(set(units)) != len(units):
            raise BadArguments(f"{text!r} names a unit twice", _FIX)
        seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise BadArguments(f"{text!r} is no time at all", _FIX)
    return seconds


def format_duration(seconds: float) -> str:
    """Short text for people: 0.4s, 42s, 3m05s, 1h02m."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
