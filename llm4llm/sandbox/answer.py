"""What a child's request comes to: a result, or a failure with its kind. Death is a value."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OnEvent = Callable[[dict[str, Any]], None]
_MOST_KIND, _MOST_REASON = 64, 4_000  # characters


@dataclass(frozen=True)
class Ok:
    """A child's result."""

    result: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """A child's failure: `timeout`, `died`, `oom`, `processes`, `disk`, `protocol`, or the child's own error kind.

    After one of the first six the child is gone; after an error of its own it still answers. Its own words are cut: they become part of
    reasons and events, and the child may say anything.
    """

    kind: str
    reason: str
    exit_code: int | None = None  # negative: the signal that ended the process
    stderr_tail: str = ""

    def __post_init__(self) -> None:
        for name, most in (("kind", _MOST_KIND), ("reason", _MOST_REASON)):
            said: str = getattr(self, name)
            if len(said) > most:
                object.__setattr__(self, name, f"{said[: most - 1]}…")


def exit_text(exit_code: int) -> str:
    """How a process ended, in words; negative codes are signals."""
    if exit_code >= 0:
        return f"the process ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{hint}"
