"""What is handed in is stored, and checked before anything of it runs."""

import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llm4llm.errors import UnknownJob
from llm4llm.kit import FrozenClock
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.service.jobs import cancel, submit
from llm4llm.service.report import job_report
from llm4llm.service.script import check_script
from llm4llm.store import Store, open_store

RNG = random.Random(1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")


def hand_in(store: Store, script: Path | str, **changes: Any) -> Job:
    facts = {"script": str(script), "script_sha256": "", "working_directory": "/", "python": sys.executable}
    return submit(Request.model_validate({**facts, **changes}), store, FrozenClock(), RNG)


def refused(store: Store, script: Path | str, **changes: Any) -> tuple[str, str]:
    job = hand_in(store, script, **changes)
    assert job.status is JobStatus.FAILED
    assert job.ended_at is not None
    assert store.jobs.get(job.id) == job
    report = job_report(store, job.id)
    assert report["hotspots"] == []
    assert report["job"]["reason"]["code"] == (job.reason and job.reason.code)
    assert job.reason is not None
    assert "\n" not in job.reason.text
    return job.reason.code, job.reason.text


def test_a_good_script_is_queued_with_its_content(store: Store, tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text("print('é')\n")
    job = hand_in(store, script)
    assert (job.status, job.reason) == (JobStatus.QUEUED, None)
    assert store.blobs.get(job.request.script_sha256) == script.read_bytes()
    assert store.jobs.latest() == (job,)


def test_a_missing_file(store: Store, tmp_path: Path) -> None:
    code, text = refused(store, tmp_path / "nowhere.py")
    assert code == "script_not_found"
    assert "nowhere.py" in text


def test_a_folder_and_a_pipe_are_no_scripts(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(store, tmp_path)[0] == "script_unreadable"
    assert refused(store, tmp_path / "pipe")[0] == "script_unreadable"
    assert refused(store, "a\0b")[0] == "script_unreadable"


@pytest.mark.parametrize("content", [b"", b" \n\t\n", b"# only a comment\n"])
def test_an_empty_script(store: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.py").write_bytes(content)
    assert refused(store, tmp_path / "s.py")[0] == "script_empty"


def test_a_syntax_error_names_file_line_and_message(store: Store, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("x = 1\ny = (\n    2,\nprint(y\n")
    code, text = refused(store, tmp_path / "s.py")
    assert code == "script_not_python"
    assert f"{tmp_path}/s.py, line " in text
    assert "was never closed" in text


@pytest.mark.parametrize("content", [b"return 1\n", b"break\n", b"x = [" * 4000, b"f(x for x in y, 1)\n"])
def test_what_only_the_compiler_finds(store: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.py").write_bytes(content)
    assert refused(store, tmp_path / "s.py")[0] == "script_not_python"


@pytest.mark.parametrize(
    "content", [b"def f(): pass\n" * 70_000, b"x = [" + b"(1, 2.5, 'a'),\n" * 60_000 + b"]"], ids=["functions", "table"]
)
def test_checking_a_script_takes_bounded_memory_and_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr("llm4llm.service.script._MEMORY_BYTES", 64 << 20)
    monkeypatch.setattr("llm4llm.service.script._PROCESSOR_S", 2)
    (tmp_path / "s.py").write_bytes(content)
    code, text = refused(store, tmp_path / "s.py")
    assert code == "script_too_heavy"
    assert "can't be checked" in text


def test_a_script_of_ordinary_tables_is_checked_with_the_ordinary_limits(store: Store, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_bytes(b"x = [" + b"1,\n" * 300_000 + b"]\n")
    assert hand_in(store, tmp_path / "s.py").status is JobStatus.QUEUED


def test_a_script_beyond_its_size_is_not_even_read(store: Store, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_bytes(b"x\n" * (2 << 20))
    code, text = refused(store, tmp_path / "s.py")
    assert (code, "1 MiB" in text) == ("script_unreadable", True)


def test_few_scripts_are_checked_at_once(tmp_path: Path) -> None:
    running, most = tmp_path / "running", tmp_path / "most"
    running.mkdir()
    most.mkdir()
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\ntouch {running}/$$; touch {most}/$(ls {running} | wc -l); sleep 0.3; rm {running}/$$\n"
        f"""echo '{{"empty": false, "version": [3, 12]}}'\n"""
    )
    python.chmod(0o755)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: check_script("s.py", b"x", str(python)), range(8)))
    assert max(int(file.name) for file in most.iterdir()) <= 2


@pytest.mark.parametrize("content", [b"x = '\xff\xfe'\n", b"\x7fELF\x00\x01\x00", b"x = 1\x00\n"])
def test_what_is_no_text(store: Store, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.py").write_bytes(content)
    assert refused(store, tmp_path / "s.py")[0] == "script_unreadable"


def test_a_declared_encoding_is_python_s_own_business(store: Store, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_bytes("# -*- coding: latin-1 -*-\nprint('é')\n".encode("latin-1"))
    assert hand_in(store, tmp_path / "s.py").status is JobStatus.QUEUED


def test_nothing_of_the_script_runs_and_its_folder_stands_in_for_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "s.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert hand_in(store, tmp_path / "s.py").status is JobStatus.QUEUED
    assert not (tmp_path / "ran").exists()


def test_an_interpreter_that_is_none(store: Store, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print(1)\n")
    assert refused(store, tmp_path / "s.py", python=str(tmp_path / "nowhere"))[0] == "bad_interpreter"
    assert refused(store, tmp_path / "s.py", python="/bin/true")[0] == "bad_interpreter"
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\necho \'{"empty": false, "version": [3, 8]}\'\n')
    old.chmod(0o755)
    code, text = refused(store, tmp_path / "s.py", python=str(old))
    assert code == "bad_interpreter"
    assert "Python 3.8" in text


def test_names_that_do_not_exist(store: Store, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print(1)\n")
    assert refused(store, tmp_path / "s.py", target="abacus")[0] == "unknown_target"
    assert refused(store, tmp_path / "s.py", agent="oracle")[0] == "unknown_agent"


def test_a_report_names_variables_without_their_values(store: Store, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print(1)\n")
    job = hand_in(store, tmp_path / "s.py", environment={"OPENAI_API_KEY": "sk-made-up"})
    report = job_report(store, job.id)
    assert report["job"]["request"]["environment"] == ["OPENAI_API_KEY"]
    assert "sk-made-up" not in str(report)


def test_unknown_jobs(store: Store) -> None:
    with pytest.raises(UnknownJob):
        cancel("job_x", store, FrozenClock())
    with pytest.raises(UnknownJob):
        job_report(store, "job_x")
