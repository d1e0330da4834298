"""Time as an argument, so that nothing reaches for it."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for measuring."""

    def now(self) -> datetime:
        """The time of day, with its zone (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FrozenClock:
    """A clock that moves only when told, or when somebody sleeps."""

    def __init__(self, start: datetime = datetime(2025, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._start.timestamp() + self._elapsed_s, UTC)

    def monotonic(self) -> float:
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        self._elapsed_s += seconds


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC to the microsecond: equal length, so that text order is time order."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
