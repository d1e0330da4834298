"""An uploaded job's files lie in a folder of its own, and nowhere else."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from llm4llm.errors import InfraError
from llm4llm.kit import sha256_bytes
from llm4llm.schema.job import Job, JobStatus, Request, UploadedFile
from llm4llm.store import BlobDamaged, Store, open_store
from llm4llm.worker.uploads import laid_out

AT = "2025-01-01T00:00:00.000000+00:00"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")


def job(script: str, files: dict[str, bytes], store: Store, **more: object) -> Job:
    stored = tuple(UploadedFile(path=path, sha256=store.blobs.put(content), bytes=len(content)) for path, content in files.items())
    facts = {"script": script, "script_sha256": store.blobs.put(b"print(1)\n"), "working_directory": ".", "python": "", "files": stored}
    return Job(id="job_1", request=Request.model_validate({**facts, **more}), status=JobStatus.QUEUED, created_at=AT)


def test_files_lie_where_their_names_say_and_nothing_else_does(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    monkeypatch.setenv("LANG", "C.UTF-8")
    uploaded = job("src/infer.py", {"src/a/b.bin": b"\0\1", "c": b""}, store, environment={"TERM": "dumb"})
    for _ in range(2):
        found = laid_out(uploaded, tmp_path / "job", store)
        root = tmp_path / "job" / "work"
        files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        assert files == {"src/infer.py": b"print(1)\n", "src/a/b.bin": b"\0\1", "c": b""}
        (root / "left").write_text("by the script")
        (root / "c").write_text("changed")
    request = found.request
    assert (request.script, request.working_directory, request.python) == (str(root / "src/infer.py"), str(root), sys.executable)
    assert request.environment["TERM"] == "dumb"
    assert request.environment["LANG"] == "C.UTF-8"
    assert "OPENAI_API_KEY" not in request.environment
    assert (found.id, request.script_sha256) == ("job_1", sha256_bytes(b"print(1)\n"))


@pytest.mark.parametrize("name", ["work", "spare"])
@pytest.mark.parametrize("kind", ["link", "file", "deep"])
def test_nothing_is_laid_out_through_what_an_earlier_attempt_left(store: Store, tmp_path: Path, name: str, kind: str) -> None:
    folder, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    if kind == "link":
        (folder / name).symlink_to(elsewhere)
    elif kind == "file":
        (folder / name).touch()
    else:
        for _ in range(1500):
            (tmp_path / "d").mkdir()
            if (folder / name).exists():
                (folder / name).rename(tmp_path / "d" / "d")
            (tmp_path / "d").rename(folder / name)
    laid_out(job("s.py", {"a/b": b"x"}, store), folder, store)
    assert list(elsewhere.iterdir()) == []
    assert not (folder / name).is_symlink()
    assert (folder / "work" / "a" / "b").read_bytes() == b"x"
    assert (folder / "spare").is_dir()


def test_a_process_that_outlived_an_attempt_can_not_lead_the_next_one_away(store: Store, tmp_path: Path) -> None:
    """It swaps the folder for a link again and again, while files are laid out."""
    folder, elsewhere = tmp_path / "job", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    uploaded = job("s.py", {f"d/{number}": b"x" for number in range(50)}, store)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                os.rename(folder / "work", tmp_path / f"old-{time.monotonic_ns()}")
            with contextlib.suppress(OSError):
                os.symlink(elsewhere, folder / "work")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(20):
            with contextlib.suppress(InfraError):
                laid_out(uploaded, folder, store)
    finally:
        stop.set()
        thread.join()
    assert list(elsewhere.iterdir()) == []


def test_a_job_of_this_machine_is_left_as_it_is(store: Store, tmp_path: Path) -> None:
    local = job("/somewhere/infer.py", {}, store)
    assert laid_out(local, tmp_path / "job", store) is local
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("name", ["../escape", "a/../../escape"])
def test_stored_names_are_not_trusted(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(InfraError, match="leaves the folder"):
        laid_out(job("s.py", {name: b"x"}, store), tmp_path / "job", store)
    assert not list(tmp_path.rglob("escape"))


def test_a_file_that_is_no_longer_what_was_uploaded(store: Store, tmp_path: Path) -> None:
    uploaded = job("s.py", {"a": b"content"}, store)
    store.blobs.path(uploaded.request.files[0].sha256).write_bytes(b"other")
    with pytest.raises(BlobDamaged):
        laid_out(uploaded, tmp_path / "job", store)
