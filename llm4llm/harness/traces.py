"""Tracebacks as they would be without us: our own frames are taken out, wherever in the stack they are."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_OWN = str(Path(__file__).resolve().parent)
_STARTERS = ("<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


def is_own(filename: str) -> bool:
    """True for the code of the harness."""
    return filename.startswith(_OWN)


def stripped(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames and without the import machinery right around them."""
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    own = [is_own(entry.tb_frame.f_code.co_filename) for entry in entries]
    kept = [
        entry
        for index, entry in enumerate(entries)
        if not own[index] and not (entry.tb_frame.f_code.co_filename in _STARTERS and any(own[max(0, index - 2) : index + 3]))
    ]
    for index, entry in enumerate(kept):
        entry.tb_next = kept[index + 1] if index + 1 < len(kept) else None
    return kept[0] if kept else None


def strip(error: BaseException, _seen: set[int] | None = None) -> BaseException:
    """The same exception with our frames taken out of it, its causes, its context and its members."""
    seen = set() if _seen is None else _seen
    if id(error) in seen:
        return error
    seen.add(id(error))
    error.__traceback__ = stripped(error.__traceback__)
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for other in (error.__cause__, error.__context__, *members):
        if other is not None:
            strip(other, seen)
    return error


@contextmanager
def hidden() -> Iterator[None]:
    """While inside, the `traceback` module (and what prints through it, like logging) does not see our frames."""
    names = [name for name in ("walk_tb", "_walk_tb_with_full_positions") if hasattr(traceback, name)]
    originals: dict[str, Callable[..., Any]] = {name: getattr(traceback, name) for name in (*names, "walk_stack")}

    def walking(original: Callable[..., Any]) -> Callable[..., Any]:
        # In both walks the first item of a pair is the frame, or (frame, line) whose first item is.
        def walk(start: Any) -> Iterator[Any]:
            return (item for item in original(start) if not is_own(item[0].f_code.co_filename))

        return walk

    def walk_stack(f: FrameType | None) -> Iterator[tuple[FrameType, int]]:
        # without a frame the original counts frames up from itself, which our own frame would put off by one
        for item in originals["walk_stack"](_caller_of_traceback() if f is None else f):
            if not is_own(item[0].f_code.co_filename) and item[0].f_code.co_filename != _STARTERS[0]:
                yield item

    for name in names:
        setattr(traceback, name, walking(originals[name]))
    traceback.walk_stack = walk_stack
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(traceback, name, original)


def _caller_of_traceback() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_own(frame.f_code.co_filename) or frame.f_code.co_filename == traceback.__file__):
        frame = frame.f_back
    return frame
