"""Keeps what a process holds while it runs a job, and lets go of the job's children when it may not go on."""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

from llm4llm.errors import DeviceLost, HandedBack, InfraError, LeaseLost, NoLongerOurs
from llm4llm.kit import Bell, Clock, first_rung, iso
from llm4llm.store import Fence, Hold, Store
from llm4llm.worker.identity import gone

_RENEWALS = 3  # per lease: one may fail without the lease running out
_RETRIES = 12  # per lease, while the database does not answer
_DEVICE_POLL_S = 0.5
_CANCEL_POLL_S = 1.0


def new_hold(holder: str, clock: Clock, lease_s: float) -> Hold:
    """A lease from now on."""
    now = clock.now()
    return Hold(holder, iso(now), iso(now + timedelta(seconds=lease_s)))


@dataclass(frozen=True)
class Terms:
    """On what terms a job is held."""

    lease_s: float
    stop: Bell  # rung when the process has to go: the job is handed back
    cancelled: Callable[[], bool]
    end_children: Callable[[], None]


class Keeper:
    """Renews the leases from a thread while it is entered.

    When the job or the device was taken from us, or when we have to go, it shuts the fence and ends the job's children: the thread that
    walks the stages finds that out with its next write, at the latest when its children have answered that they are dead.
    """

    def __init__(self, store: Store, fence: Fence, clock: Clock, rng: random.Random, terms: Terms) -> None:
        self._store = store
        self._fence = fence
        self._clock = clock
        self._rng = rng
        self._terms = terms
        self._done = Bell()
        self._stopped = False
        self._lock = threading.Lock()  # renewing and letting go of the device exclude each other
        self._thread = threading.Thread(target=self._keep, name=f"keeper-{fence.job_id}", daemon=True)

    def hold(self) -> Hold:
        return new_hold(self._fence.holder, self._clock, self._terms.lease_s)

    def __enter__(self) -> "Keeper":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.ring()
        self._thread.join()
        self._done.close()

    @contextlib.contextmanager
    def device(self, name: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Hold a device, after waiting for whoever has it; `waiting` is called once if that takes time. A cancelled job waits no longer."""
        told = False
        while not self._took(name):
            if self._fence.shut is not None:
                raise self._fence.shut
            if self._terms.cancelled():
                yield
                return
            if not told:
                told = True
                waiting()
            self._terms.stop.wait(_DEVICE_POLL_S * (0.5 + self._rng.random()))
        try:
            yield
        finally:
            with self._lock:
                self._fence.device = None
                with contextlib.suppress(InfraError):
                    # what can't be released now runs out by itself
                    self._store.devices.release(name, self._fence.holder)

    def _took(self, name: str) -> bool:
        with self._lock:
            if not self._store.devices.take(name, self.hold(), gone):
                return False
            self._fence.device = name
            return True

    def _keep(self) -> None:
        bells = [self._done, self._terms.stop]
        lease_s = self._terms.lease_s
        renewed, pause, waited = self._clock.monotonic(), lease_s / _RENEWALS, 0.0
        while (rung := first_rung(bells, min(pause, _CANCEL_POLL_S))) is not self._done:
            if rung is not None:
                bells.remove(rung)
                self._let_go(HandedBack(self._fence.job_id))
                continue
            self._stop_if_cancelled()
            waited += min(pause, _CANCEL_POLL_S)
            if waited < pause:
                continue
            lost, pause, waited = None, lease_s / _RENEWALS, 0.0
            try:
                lost = self._renew()
                renewed = self._clock.monotonic()
            except Exception:
                # whatever it was: a lease is kept up or given up, never forgotten
                pause = lease_s / _RETRIES
                if self._clock.monotonic() - renewed >= lease_s:
                    # nobody could say whether it is still ours
                    lost = LeaseLost(self._fence.job_id)
            if lost is not None:
                self._let_go(lost)
            if isinstance(lost, LeaseLost):
                self._done.wait(None)
                return

    def _stop_if_cancelled(self) -> None:
        """Whoever cancels a job does not want to wait for its script: the stage gets its children's death for an answer, once."""
        with contextlib.suppress(InfraError):
            if not self._stopped and self._terms.cancelled():
                self._stopped = True
                self._terms.end_children()

    def _renew(self) -> NoLongerOurs | None:
        with self._lock:
            hold, device = self.hold(), self._fence.device
            if not self._store.leases.renew(self._fence.job_id, hold):
                return LeaseLost(self._fence.job_id)
            if device is not None and not self._store.devices.renew(device, hold):
                return DeviceLost(device)
            return None

    def _let_go(self, why: NoLongerOurs) -> None:
        self._fence.shut_for(why)
        self._terms.end_children()
