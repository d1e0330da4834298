"""Questions to the database are shared, answers are never older than the request."""

import asyncio
from pathlib import Path

import pytest

from llm4llm.api.marks import Marks
from llm4llm.api.watch import Watch
from llm4llm.errors import StoreUnavailable
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.store import Store, open_store

AT = "2025-01-01T00:00:00.000000+00:00"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")
    request = Request(script="s.py", script_sha256="0" * 64, working_directory=".", python="")
    for name in ("job_1", "job_2"):
        store.jobs.add(Job(id=name, request=request, status=JobStatus.QUEUED, created_at=AT))
    return store


def test_many_who_ask_at_once_share_few_questions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []
    marks = store.listing.marks

    def counted(ids: tuple[str, ...]) -> object:
        asked.append(ids)
        return marks(ids)

    monkeypatch.setattr(store.listing, "marks", counted)

    async def ask() -> list[object]:
        reader = Marks(store)
        return await asyncio.gather(*(reader.of(f"job_{number % 3}") for number in range(60)))

    found = asyncio.run(ask())
    assert found.count(None) == 20
    assert len(asked) <= 2


def test_an_answer_shows_what_was_stored_before_it_was_asked_for(store: Store) -> None:
    async def ask() -> None:
        reader = Marks(store)
        for number in range(1, 20):
            early = asyncio.create_task(reader.of("job_1"))
            await asyncio.sleep(0)
            store.events.add(Event(job="job_1", kind="note", text=str(number)), AT)
            mark = await reader.of("job_1")
            assert mark is not None
            assert mark.last_event == number
            await early

    asyncio.run(ask())


def test_a_database_that_fails_is_told_to_all_and_asked_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    marks, faults = store.listing.marks, iter([StoreUnavailable("gone", "wait")])

    def failing(ids: tuple[str, ...]) -> object:
        for fault in faults:
            raise fault
        return marks(ids)

    monkeypatch.setattr(store.listing, "marks", failing)

    async def ask() -> None:
        reader = Marks(store)
        found = await asyncio.gather(*(reader.of("job_1") for _ in range(3)), return_exceptions=True)
        assert all(isinstance(one, StoreUnavailable) for one in found)
        assert await reader.of("job_1") is not None

    asyncio.run(ask())


def test_waiting_ends_with_a_change_a_removal_the_end_of_time_or_the_server(store: Store) -> None:
    async def wait() -> None:
        watch = Watch(store)
        mark = store.listing.marks(("job_1",))["job_1"]
        assert await watch.changed("job_1", mark, 0.05) == mark
        waiting = asyncio.create_task(watch.changed("job_1", mark, 30.0))
        other = asyncio.create_task(watch.changed("job_2", store.listing.marks(("job_2",))["job_2"], 30.0))
        await asyncio.sleep(0.05)
        store.events.add(Event(job="job_1", kind="note", text="x"), AT)
        found = await waiting
        assert found is not None
        assert found.last_event == 1
        assert not other.done()
        store.jobs.move("job_2", {JobStatus.QUEUED}, JobStatus.CANCELLED, None, AT)
        assert (await other) is not None
        gone = asyncio.create_task(watch.changed("job_2", store.listing.marks(("job_2",))["job_2"], 30.0))
        await asyncio.sleep(0.05)
        store.listing.remove("job_2")
        assert await gone is None
        last = asyncio.create_task(watch.changed("job_1", found, 30.0))
        await asyncio.sleep(0.05)
        watch.close()
        assert await last == found
        assert watch.closing

    asyncio.run(wait())
