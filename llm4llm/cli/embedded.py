"""Workers that run beside the API in `llm4llm serve`."""

from collections.abc import Iterator
from contextlib import contextmanager

from llm4llm.worker.fleet import Fleet
from llm4llm.worker.loop import Rounds

DEFAULT = 1
_POLL_S = 1.0


@contextmanager
def embedded_workers(count: int) -> Iterator[None]:
    """Workers run inside the block; at its end they hand back or finish what they hold."""
    if count:
        with Fleet(count, Rounds(_POLL_S)):
            yield
    else:
        yield
