"""One run of a job by a process that holds its lease."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from llm4llm.kit import Bell, Clock, iso
from llm4llm.pipeline.transitions import not_before
from llm4llm.sandbox import Sandbox
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job
from llm4llm.settings import Settings
from llm4llm.stages.tools import Progress
from llm4llm.store import Fence, Store
from llm4llm.worker.keeping import Keeper, Terms, new_hold
from llm4llm.worker.scratch import job_folder


@dataclass(frozen=True)
class Station:
    """What a process that runs jobs works with, whichever job it is."""

    settings: Settings
    store: Store
    clock: Clock
    rng: random.Random


@dataclass(frozen=True)
class Held:
    """What a run of one job is given. Through this store nothing can be written about a job that is no longer ours."""

    settings: Settings
    store: Store
    sandbox: Sandbox
    folder: Path
    clock: Clock
    progress: Progress
    cancelled: Callable[[], bool]
    device: Callable[[str], AbstractContextManager[None]]  # by its name: see device.py
    pause: Callable[[float], None]  # ends early when the process has to go, or the job is lost


Walk = Callable[[Job, Held], Job]


def hand_back(station: Station, job_id: str, holder: str, *, counts: bool) -> None:
    """Queue a job again if it is still ours: no stage has ended it or queued it. An attempt that `counts` makes the next one wait."""
    later = not_before(station.store.jobs.attempts(job_id), station.clock) if counts else None
    station.store.leases.hand_back(job_id, new_hold(holder, station.clock, station.settings.lease_s), later, counts)


def run_held(job: Job, holder: str, station: Station, walk: Walk, progress: Progress, stop: Bell) -> Job:
    """What `walk` makes of a job whose lease is ours under this name; every child has ended when this returns or raises.

    NoLongerOurs says that the job was taken from us, or that the bell rang: what had not been stored by then never will be.
    """
    fence = Fence(job.id, holder)
    fenced = station.store.fenced(fence)

    def cancelled() -> bool:
        return fenced.jobs.cancel_asked(job.id)

    with Sandbox(station.settings.home, station.settings.private) as sandbox:
        terms = Terms(station.settings.lease_s, stop, cancelled, sandbox.end_all)
        with Keeper(station.store, fence, station.clock, station.rng, terms) as keeper:

            def device(name: str) -> AbstractContextManager[None]:
                def waiting() -> None:
                    event = Event(job=job.id, kind="note", text=f"waiting for {name}: another job is timed on it")
                    fenced.events.add(event, iso(station.clock.now()))
                    progress(event)

                return keeper.device(name, waiting)

            def pause(seconds: float) -> None:
                stop.wait(seconds)
                if fence.shut is not None:
                    raise fence.shut

            folder = job_folder(station.settings.home, job.id)
            return walk(job, Held(station.settings, fenced, sandbox, folder, station.clock, progress, cancelled, device, pause))
