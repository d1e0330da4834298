"""One worker per job."""

import subprocess
import sys
from pathlib import Path

import pytest

from llm4llm.errors import JobNotResumable
from llm4llm.schema.job import Job, JobStatus, Request, StageName
from llm4llm.worker.lock import job_lock
from llm4llm.worker.scratch import clear_ended, unneeded


def test_a_job_is_held_by_one_worker_and_free_after_it(tmp_path: Path) -> None:
    with job_lock(tmp_path / "job", "job_1"), pytest.raises(JobNotResumable, match="another process"), job_lock(tmp_path / "job", "job_1"):
        pass
    with job_lock(tmp_path / "job", "job_1"):
        pass


def test_a_child_that_survives_does_not_keep_the_job(tmp_path: Path) -> None:
    program = "import time; print(1, flush=True); time.sleep(60)"
    with job_lock(tmp_path, "job_1"):
        child = subprocess.Popen([sys.executable, "-c", program], close_fds=False, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()  # it runs: whatever it was started with is closed or kept by now
        with job_lock(tmp_path, "job_1"):
            pass
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(("stop", "left"), [(None, {"lock"}), (StageName.TASK, {"lock", "tasks"})])
def test_only_what_is_needed_stays(tmp_path: Path, stop: StageName | None, left: set[str]) -> None:
    folder, own = tmp_path / "job_1", tmp_path / "job_1.own"
    (own / "tasks" / "t_1").mkdir(parents=True)
    (own / "candidates").mkdir(parents=True)
    (folder / "confirm").mkdir(parents=True)
    (folder / "tasks").mkdir()
    for place in (folder / "script.stdout", folder / "replay.log", own / "lock", own / "script.json"):
        place.write_text("x")
    request = Request(script="/s.py", script_sha256="0", working_directory="/", python="p", stop_after=stop)
    job = Job(id="job_1", request=request, status=JobStatus.SUCCEEDED, created_at="2025")
    assert unneeded(folder, job)
    clear_ended(folder, job)
    assert not unneeded(folder, job)
    assert {entry.name for entry in folder.iterdir()} == {"script.stdout"}
    assert {entry.name for entry in own.iterdir()} == left
