"""Holders' names, and folders that are inherited from holders that are gone or asleep."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm4llm.errors import InfraError
from llm4llm.worker.identity import end_process, gone, new_holder
from llm4llm.worker.lock import inherited_lock, job_lock

HOLDING = """
import sys
from pathlib import Path
from llm4llm.worker.identity import new_holder
from llm4llm.worker.lock import job_lock
holder = new_holder()
with job_lock(Path(sys.argv[1]), "job_1", holder):
    print(holder, flush=True)
    sys.stdin.read()
"""


def holding(folder: Path) -> tuple["subprocess.Popen[str]", str]:
    """A process that holds a job's folder, and its name."""
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_no_two_holds_have_the_same_name() -> None:
    names = {new_holder() for _ in range(10)}
    assert len(names) == 10
    assert all(len(name) <= 64 and not gone(name) for name in names)


def test_only_a_process_that_is_known_to_have_ended_is_gone(tmp_path: Path) -> None:
    process, holder = holding(tmp_path)
    assert not gone(holder)
    process.kill()
    process.communicate()
    assert gone(holder)
    machine, pid, start, number = new_holder().split(".")
    assert gone(f"{machine}.{pid}.{int(start) - 1}.{number}")  # the number was somebody else's before
    assert not gone(f"elsewhere.{pid}.1.{number}")
    assert not gone("named otherwise")


def test_this_process_never_ends_itself() -> None:
    end_process(new_holder())
    end_process("elsewhere.1.1.1")


def test_the_folder_of_a_sleeping_process_is_inherited_with_its_end(tmp_path: Path) -> None:
    process, _ = holding(tmp_path)
    process.send_signal(signal.SIGSTOP)
    with inherited_lock(tmp_path, "heir", 0.3, time.sleep):
        assert (tmp_path.with_name(f"{tmp_path.name}.own") / "lock").read_text() == "heir"
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL


def test_who_lets_go_in_time_is_left_alone(tmp_path: Path) -> None:
    process, _ = holding(tmp_path)

    def pause(seconds: float) -> None:
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        time.sleep(seconds)

    with inherited_lock(tmp_path, "heir", 30, pause):
        pass
    assert process.wait(10) == 0
    assert process.stdout is not None
    process.stdout.close()


def test_a_folder_that_is_held_where_we_cannot_look_is_an_error(tmp_path: Path) -> None:
    waited: list[float] = []
    with job_lock(tmp_path, "job_1", "elsewhere.1.1.1"), pytest.raises(InfraError, match="lost the job"):
        with inherited_lock(tmp_path, new_holder(), 0.2, waited.append):
            pass
    assert sum(waited) >= 10
