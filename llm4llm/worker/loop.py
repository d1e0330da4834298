"""The lease loop: wait for work, run one job at a time, hand back what can't be ended here."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from llm4llm.errors import HandedBack, InfraError, LeaseLost
from llm4llm.kit import Bell
from llm4llm.pipeline.transitions import ENDED
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus
from llm4llm.worker.folder import settle
from llm4llm.worker.held import Held, Station, Walk, hand_back, run_held
from llm4llm.worker.identity import new_holder
from llm4llm.worker.keeping import new_hold
from llm4llm.worker.lock import inherited_lock
from llm4llm.worker.walk import walk as walk_stages

_LOG = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 30.0

Pause = Callable[[float], bool]


@dataclass(frozen=True)
class Rounds:
    """How often to look for work, and whether to do so for ever."""

    poll_s: float
    once: bool = False  # run one waiting job, if there is any


def work(station: Station, rounds: Rounds, stop: Bell, walk: Walk = walk_stages, pause: Pause | None = None) -> int:
    """Run jobs until the bell rings; how many were taken up. `pause` waits between two looks and says whether the bell has rung."""
    pause = pause or stop.wait
    taken, faults = 0, 0
    while not stop.rung:
        try:
            worked = _take_one(station, walk, stop)
            faults = 0
        except InfraError as error:
            # the database does not answer: whatever was ours runs out by itself
            faults += 1
            worked = False
            _LOG.error("looking for work failed: %s", error)
        taken += worked
        if rounds.once:
            break
        if not worked:
            # spread, so that workers started together do not ask together
            longest = min(_LONGEST_PAUSE_S, rounds.poll_s * 2**faults) if faults else rounds.poll_s
            pause(longest * (0.5 + station.rng.random()))
    return taken


def _take_one(station: Station, walk: Walk, stop: Bell) -> bool:
    """Run one job as far as it comes; False if none waits."""
    holder = new_holder()
    hold = new_hold(holder, station.clock, station.settings.lease_s)
    job = station.store.leases.claim(hold, station.settings.max_attempts)
    if job is None:
        return False
    _Run(station, job, holder).to_its_end(walk, stop)
    return True


@dataclass(frozen=True)
class _Run:
    """One claimed job."""

    station: Station
    job: Job
    holder: str

    def to_its_end(self, walk: Walk, stop: Bell) -> None:
        """Whatever happens is logged, and leaves the job ended, queued again, or in the hands of whoever took it."""
        self._say(logging.INFO, "taken up")
        try:
            ended = run_held(self.job, self.holder, self.station, self._with_folder(walk), self._hear, stop)
        except LeaseLost as lost:
            self._say(logging.WARNING, str(lost))
        except HandedBack:
            self._hand_back(counts=False)
            self._say(logging.INFO, "handed back: this worker has to go")
        except InfraError as error:
            self._hand_back(counts=True)
            self._say(logging.ERROR, f"put back: {error}")
        except Exception:
            # a fault of ours in a stage has ended the job already; one outside of them may do better next time
            _LOG.exception("fault", extra={"job": self.job.id})
            self._hand_back(counts=True)
        else:
            reason = ended.reason.code if ended.reason else None
            level = logging.INFO if ended.status is not JobStatus.FAILED else logging.WARNING
            self._say(level, ended.status.value, reason=reason)

    def _with_folder(self, walk: Walk) -> Walk:
        """The same walk, in a folder that nobody else writes in."""

        def walking(job: Job, held: Held) -> Job:
            patience_s = self.station.settings.lease_s / 2
            with inherited_lock(held.folder, self.holder, patience_s, held.pause):
                ended = walk(job, held)
                if ended.status in ENDED:
                    settle(ended, held.folder, self.station.store, self.station.clock)
                return ended

        return walking

    def _hand_back(self, *, counts: bool) -> None:
        hand_back(self.station, self.job.id, self.holder, counts=counts)

    def _hear(self, event: Event) -> None:
        if event.kind in ("stage_started", "stage_finished", "note"):
            level = logging.DEBUG if event.kind == "note" else logging.INFO
            self._say(level, event.text, stage=event.stage.value if event.stage else None)

    def _say(self, level: int, text: str, **fields: str | None) -> None:
        _LOG.log(level, "%s", text, extra={"job": self.job.id, "holder": self.holder, **fields})
