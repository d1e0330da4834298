"""The thread that keeps leases, and what it does when one is lost."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm4llm.errors import DeviceLost, HandedBack, LeaseLost, StoreUnavailable
from llm4llm.kit import Bell, SystemClock
from llm4llm.schema.job import Job, JobStatus, Request, StageName
from llm4llm.store import Fence, Store, open_store
from llm4llm.worker.keeping import Keeper, Terms, new_hold

CLOCK = SystemClock()
LEASE_S = 0.6


class Bench:
    """A claimed job with its keeper."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.stop = Bell()
        self.children_ended = Bell()
        self.cancelled = False
        request = Request(script="/s.py", script_sha256="0", working_directory="/", python="python3")
        store.jobs.add(Job(id="job_1", request=request, status=JobStatus.QUEUED, created_at="2025"))
        assert store.leases.claim(new_hold("a", CLOCK, LEASE_S), 3)
        self.fence = Fence("job_1", "a")
        terms = Terms(LEASE_S, self.stop, lambda: self.cancelled, self.children_ended.ring)
        self.keeper = Keeper(store, self.fence, CLOCK, random.Random(0), terms)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
    bench = Bench(store)
    yield bench
    bench.stop.close()
    bench.children_ended.close()
    store.close()


def nobody(holder: str) -> bool:
    return False


def take_over(bench: Bench) -> None:
    """The job goes to somebody else, who believes us dead."""
    assert bench.store.leases.take("job_1", new_hold("b", CLOCK, 60), lambda holder: True)


def silent() -> None:
    pass


def test_a_lease_is_kept_for_longer_than_it_lasts(bench: Bench) -> None:
    with bench.keeper, bench.keeper.device("gpu", silent):
        assert not bench.children_ended.wait(3 * LEASE_S)
        assert bench.store.leases.claim(new_hold("b", CLOCK, 1), 3) is None
        assert not bench.store.devices.take("gpu", new_hold("b", CLOCK, 1), nobody)
        bench.store.fenced(bench.fence).jobs.enter("job_1", StageName.PROFILE)
    assert bench.store.devices.held() == {}


def test_a_lost_lease_ends_the_children_and_shuts_the_fence(bench: Bench) -> None:
    with bench.keeper:
        take_over(bench)
        assert bench.children_ended.wait(30)
        assert isinstance(bench.fence.shut, LeaseLost)
    assert bench.store.leases.held() == {"job_1": "b"}


def test_a_lost_device_does_too_and_the_job_stays_ours(bench: Bench) -> None:
    with bench.keeper:
        with bench.keeper.device("gpu", silent):
            assert bench.store.devices.take("gpu", new_hold("b", CLOCK, 60), lambda holder: True)
            assert bench.children_ended.wait(30)
        assert isinstance(bench.fence.shut, DeviceLost)
        assert bench.store.leases.hand_back("job_1", bench.keeper.hold(), None, True)
    assert bench.store.devices.held() == {"gpu": "b"}


def test_who_has_to_go_hands_back(bench: Bench) -> None:
    with bench.keeper:
        bench.stop.ring()
        assert bench.children_ended.wait(30)
        with pytest.raises(HandedBack):
            bench.store.fenced(bench.fence).jobs.enter("job_1", StageName.PROFILE)
        assert bench.store.leases.hand_back("job_1", bench.keeper.hold(), None, False)


def test_a_lease_that_nobody_can_renew_counts_as_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> bool:
        raise StoreUnavailable("the database is gone")

    with bench.keeper:
        monkeypatch.setattr(bench.store.leases, "renew", unreachable)
        assert bench.children_ended.wait(30)
        assert isinstance(bench.fence.shut, LeaseLost)


def test_a_device_is_waited_for(bench: Bench) -> None:
    assert bench.store.devices.take("gpu", new_hold("b", CLOCK, 60), nobody)
    told = threading.Event()
    threading.Thread(target=lambda: told.wait(30) and bench.store.devices.release("gpu", "b")).start()
    with bench.keeper, bench.keeper.device("gpu", told.set):
        assert bench.store.devices.held() == {"gpu": "a"}
    assert told.is_set()


@pytest.mark.parametrize("end", ["lost", "stopped"])
def test_waiting_for_a_device_ends_with_the_lease(bench: Bench, end: str) -> None:
    assert bench.store.devices.take("gpu", new_hold("c", CLOCK, 60), nobody)
    ends: dict[str, Callable[[], None]] = {"lost": lambda: take_over(bench), "stopped": bench.stop.ring}
    with bench.keeper, pytest.raises((LeaseLost, HandedBack)), bench.keeper.device("gpu", ends[end]):
        pytest.fail("the device was somebody else's")
    assert bench.store.devices.held() == {"gpu": "c"}


def test_a_cancelled_job_does_not_wait_for_a_device(bench: Bench) -> None:
    assert bench.store.devices.take("gpu", new_hold("c", CLOCK, 60), nobody)
    bench.cancelled = True
    with bench.keeper, bench.keeper.device("gpu", silent):
        assert bench.fence.device is None
    assert bench.store.devices.held() == {"gpu": "c"}


def test_the_keeper_s_thread_ends_with_the_job(bench: Bench) -> None:
    before = threading.active_count()
    with bench.keeper:
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
