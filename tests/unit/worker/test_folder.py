"""Folders of ended jobs, and scripts that are no longer there, whatever was left in their place."""

import logging
import os
from pathlib import Path
from typing import cast

import pytest

from llm4llm.kit import SystemClock, sha256_bytes
from llm4llm.sandbox import Limits, Sandbox
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.store import Store, open_store
from llm4llm.worker import folder as module
from llm4llm.worker.folder import settle_left
from llm4llm.worker.host import HostSetting, LiveHost, ScriptChanged

SCRIPT = b"print(1)\n"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")


def ended_job(number: int, store: Store, home: Path) -> Path:
    """An ended job's folder, with something in it that it does not keep."""
    request = Request(script="s.py", script_sha256="0", working_directory=".", python="")
    store.jobs.add(Job(id=f"job_{number}", request=request, status=JobStatus.FAILED, created_at=f"2025-{number}"))
    folder = home / "jobs" / f"job_{number}"
    (folder / "work").mkdir(parents=True)
    return folder


def deep(folder: Path, levels: int) -> None:
    """A folder far below what a path can name."""
    opened = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=opened)
        inner = os.open("d", os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = inner
    os.close(opened)


def test_what_a_killed_worker_left_is_removed_however_deep_it_is(store: Store, tmp_path: Path) -> None:
    first, second = (ended_job(number, store, tmp_path) for number in (1, 2))
    deep(first / "work", 1500)
    (second / "script.stdout").write_text("x")
    (second / "tasks").symlink_to(tmp_path)
    own = second.with_name("job_2.own")
    own.mkdir()
    (own / "script.json").touch()
    (tmp_path / "jobs" / "job_2.own.own").mkdir()
    (tmp_path / "jobs" / "stranger").mkdir()
    (tmp_path / "jobs" / "stranger" / "file").touch()
    (tmp_path / "jobs" / "file").touch()
    assert settle_left(tmp_path, store, SystemClock()) == 2
    assert os.listdir(first) == []
    assert os.listdir(second) == ["script.stdout"]
    assert os.listdir(own) == ["lock"]
    assert settle_left(tmp_path, store, SystemClock()) == 0


def test_one_folder_that_can_not_be_settled_keeps_nobody_from_work(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3):
        ended_job(number, store, tmp_path)
    settle = module.settle

    def failing(job: Job, folder: Path, *more: object) -> None:
        if job.id == "job_2":
            raise RecursionError("too deep")
        settle(job, folder, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "settle", failing)
    with caplog.at_level(logging.ERROR):
        assert settle_left(tmp_path, store, SystemClock()) == 2
    assert "too deep" in caplog.text


@pytest.mark.parametrize("inside", [True, False], ids=["uploaded", "of this machine"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "absent", "large", "way"])
def test_a_script_that_replaced_itself_is_changed_and_nobody_waits_for_it(tmp_path: Path, inside: bool, kind: str) -> None:
    scratch = tmp_path / "job_1"
    place = (scratch / "work" if inside else tmp_path / "mine") / "src" / "s.py"
    place.parent.mkdir(parents=True)
    scratch.mkdir(exist_ok=True)
    (tmp_path / "other.py").write_bytes(SCRIPT if inside else b"print(2)\n")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link":
        place.symlink_to(tmp_path / "other.py")
    elif kind == "folder":
        place.mkdir()
    elif kind == "large":
        place.touch()
        os.truncate(place, 1 << 40)
    elif kind == "way":
        place.parent.rmdir()
        place.parent.symlink_to(tmp_path)
        (tmp_path / "s.py").write_bytes(SCRIPT if inside else b"print(2)\n")
    request = Request(script=str(place), script_sha256=sha256_bytes(SCRIPT), working_directory=str(tmp_path), python="python3")
    job = Job(id="job_1", request=request, status=JobStatus.RUNNING, created_at="2025")
    host = LiveHost(cast(Sandbox, None), HostSetting(job, scratch, Limits(), 60.0))
    with pytest.raises(ScriptChanged):
        host.request("capture", {"time_limit_s": 10.0}, 10.0)
