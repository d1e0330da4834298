"""Workers that run beside the API in `llm4llm serve`."""

from collections.abc import Iterator
from contextlib import contextmanager

from llm4llm.errors import BadArguments
from llm4llm.settings import Settings

DEFAULT = 0


@contextmanager
def embedded_workers(count: int, settings: Settings) -> Iterator[None]:
    """Workers run inside the block; at its end they hand back or finish what they hold."""
    if count:
        # the one place where worker/fleet.py is to be started and stopped
        raise BadArguments("this version has no embedded workers", "start with --workers 0")
    yield
