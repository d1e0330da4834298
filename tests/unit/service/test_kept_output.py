"""What a job's script printed, wherever it is asked for."""

from pathlib import Path

import pytest

from llm4llm.kit import FrozenClock
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.service.output import event_lines, keep_output, script_output
from llm4llm.store import Store, open_store

AT = "2025-01-01T00:00:00.000000+00:00"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")
    request = Request(script="a/infer.py", script_sha256="0" * 64, working_directory=".", python="")
    store.jobs.add(Job(id="job_1", request=request, status=JobStatus.QUEUED, created_at=AT))
    return store


def test_output_is_kept_once_and_found_from_elsewhere(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jobs" / "job_1"
    folder.mkdir(parents=True)
    (folder / "script.stdout").write_bytes(b"hello")
    # what a script says must not take room: no step may read all of it

    def all_of_them(job_id: str) -> tuple[Event, ...]:
        raise AssertionError("every event was read")

    monkeypatch.setattr(store.events, "of", all_of_them)
    for _ in range(2):
        keep_output("job_1", folder, store, FrozenClock())
    assert store.events.count("job_1") == 1
    assert script_output("job_1", "stdout", store, tmp_path / "elsewhere") == b"hello"
    assert script_output("job_1", "stderr", store, tmp_path / "elsewhere") == b""


def test_a_line_of_the_log_is_one_line(store: Store) -> None:
    store.events.add(Event(job="job_1", kind="note", text="a\n2025\x1b[2J\x9b"), AT)
    assert list(event_lines("job_1", store)) == ["2025-01-01T00:00:00.000Z job        a 2025\\x1b[2J\\x9b\n"]
