"""A token bucket: so many per second, so many at once."""

from dataclasses import dataclass


@dataclass
class TokenBucket:
    """Starts full. Not for use by two threads at once; the caller holds a lock."""

    per_second: float
    capacity: float
    at: float  # monotonic seconds of the last look
    tokens: float | None = None

    def take(self, now: float) -> float:
        """0 if a token was there and is taken, else the seconds until there is one."""
        held = self.capacity if self.tokens is None else self.tokens
        held = min(self.capacity, held + max(0.0, now - self.at) * self.per_second)
        self.at = now
        if held >= 1.0:
            self.tokens = held - 1.0
            return 0.0
        self.tokens = held
        return (1.0 - held) / self.per_second
