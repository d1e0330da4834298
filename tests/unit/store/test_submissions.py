"""Stored once per idempotency key, and never more at once than allowed, however many try."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llm4llm.errors import IdempotencyConflict, TooManyJobs
from llm4llm.schema.apikey import ApiKey, KeyLimits, Scope
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.store import Store, open_store
from llm4llm.store.listing import Wanted
from llm4llm.store.submissions import Once

AT = "2025-01-01T00:00:00.000000+00:00"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")
    for owner in ("key_1", "key_2"):
        key = ApiKey(id=owner, name=owner, scopes=frozenset({Scope.SUBMIT}), limits=KeyLimits(), created_at=AT)
        store.api_keys.add(key, owner.ljust(64, "0"))
    return store


def job(number: int, at: str = AT) -> Job:
    request = Request(script="s.py", script_sha256="0" * 64, working_directory=".", python="")
    return Job(id=f"job_{number}", request=request, status=JobStatus.QUEUED, created_at=at)


@pytest.mark.parametrize("owner", [None, "key_1"])
def test_one_key_one_job(store: Store, owner: str | None) -> None:
    once = Once("k", "a" * 64)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda number: store.submissions.add(job(number), owner, once, 100), range(16)))
    assert len(found) == 1
    assert len(store.jobs.latest()) == 1
    with pytest.raises(IdempotencyConflict):
        store.submissions.add(job(99), owner, Once("k", "b" * 64), 100)
    other = store.submissions.add(job(100), "key_2", once, 100)
    assert other == "job_100"


def test_never_more_jobs_at_once_than_allowed(store: Store) -> None:
    def attempt(number: int) -> bool:
        try:
            store.submissions.add(job(number), "key_1", None, 3)
        except TooManyJobs:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == 3
    assert store.submissions.active("key_1") == 3
    store.jobs.move(store.jobs.latest()[0].id, {JobStatus.QUEUED}, JobStatus.CANCELLED, None, AT)
    assert attempt(50)
    assert store.submissions.add(job(60), "key_2", None, 3) == "job_60"


def test_removing_a_job_frees_its_key_but_only_once_it_has_ended(store: Store) -> None:
    once = Once("k", "a" * 64)
    store.submissions.add(job(1), None, once, 100)
    assert not store.listing.remove("job_1")
    store.jobs.move("job_1", {JobStatus.QUEUED}, JobStatus.CANCELLED, None, AT)
    assert store.listing.remove("job_1")
    assert not store.listing.remove("job_1")
    assert store.submissions.add(job(2), None, once, 100) == "job_2"


def test_pages_of_an_owner_with_equal_times(store: Store) -> None:
    for number in range(5):
        store.submissions.add(job(number), "key_1", None, 100)
    store.submissions.add(job(9), "key_2", None, 100)
    seen: list[str] = []
    before = None
    while page := store.listing.page(Wanted(owner="key_1", before=before, limit=2)):
        seen += [one.id for one in page]
        before = (page[-1].created_at, page[-1].id)
    assert seen == [f"job_{number}" for number in (4, 3, 2, 1, 0)]
    assert len(store.listing.page(Wanted(everybody=True))) == 6
    assert store.listing.page(Wanted(owner=None)) == ()
