"""A worker process: settings, store, signals, and the loop until it is asked to go."""

import logging
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from llm4llm.kit import Bell, SystemClock, set_up_traces
from llm4llm.settings import Settings
from llm4llm.store import open_store
from llm4llm.worker.folder import settle_left
from llm4llm.worker.held import Station, Walk
from llm4llm.worker.loop import Rounds, work
from llm4llm.worker.signals import drained_by_signals
from llm4llm.worker.walk import walk as walk_stages

_LOG = logging.getLogger(__name__)


def log_level(settings: Settings) -> str:
    """What a worker logs from: its progress, unless another level than the default was chosen."""
    return "info" if settings.log_level == "warning" else settings.log_level


def run_worker(settings: Settings, rounds: Rounds, parent: int | None = None, walk: Walk = walk_stages) -> int:
    """Work until SIGTERM, SIGINT or SIGHUP, or once if so asked; how many jobs were taken up.

    `parent` is a file descriptor whose end means that whoever started us has gone. Only for the main thread.
    """
    set_up_traces("llm4llm-worker")
    rng = random.Random()  # noqa: S311 (spreads waiting in time)
    with Bell() as stop, drained_by_signals(stop), _following(parent, stop):
        store = open_store(settings.database, settings.blobs)
        try:
            station = Station(settings, store, SystemClock(), rng)
            _LOG.info("worker %s started", os.getpid())
            settled = settle_left(settings.home, store, station.clock)
            if settled:
                _LOG.info("settled %s folders of ended jobs", settled)
            taken = work(station, rounds, stop, walk)
            _LOG.info("worker %s has ended", os.getpid())
            return taken
        finally:
            store.close()


@contextmanager
def _following(parent: int | None, stop: Bell) -> Iterator[None]:
    """Ring the bell when the other end of the pipe is closed: by whoever started us, or by the kernel after its death."""
    if parent is not None:
        threading.Thread(target=_listen, args=(parent, stop), name="parent", daemon=True).start()
    yield


def _listen(parent: int, stop: Bell) -> None:
    try:
        while os.read(parent, 1):
            pass
    except OSError:
        _LOG.warning("the pipe to the parent broke")
    stop.ring()
