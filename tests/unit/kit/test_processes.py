import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from llm4llm.kit import kill_group, members, proportional_bytes, resident_bytes, signal_group

SLEEP = "import time; time.sleep(60)"


def started(code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    return process


def test_members_memory_and_end_of_a_group(tmp_path: Path) -> None:
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}]); print(p.pid, flush=True); {SLEEP}"
    process = started(code)
    try:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        assert {member.pid for member in members(process.pid)} == {process.pid, grandchild}
        assert 0 < proportional_bytes(process.pid) <= resident_bytes(process.pid)
    finally:
        assert kill_group(process.pid)
        process.communicate()
    assert members(process.pid) == []
    assert resident_bytes(process.pid) == 0


def test_a_descendant_with_a_session_of_its_own_is_found() -> None:
    code = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True); print(flush=True); {SLEEP}"
    )
    process = started(code)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(members(process.pid)) == 2
    finally:
        assert kill_group(process.pid)
        process.communicate()


def test_a_group_that_is_none_can_not_be_signalled() -> None:
    process = started("pass")
    process.communicate()
    assert not signal_group(process.pid, signal.SIGTERM)


def test_grace_lets_a_group_end_by_itself() -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); print(flush=True); time.sleep(60)"
    process = started(code)
    assert process.stdout is not None
    process.stdout.readline()
    assert kill_group(process.pid, grace_s=10)
    process.communicate()
    assert process.returncode == 3


def test_a_zombie_counts_as_ended() -> None:
    process = started("pass")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    before = time.monotonic()
    assert kill_group(process.pid)
    assert time.monotonic() - before < 1
    process.communicate()
    assert process.returncode == 0


def test_a_process_without_its_first_thread_is_living_and_holds_memory() -> None:
    code = (
        "import ctypes, threading, time; held = b'x' * (64 << 20)\n"
        "def run():\n    time.sleep(0.3); print(flush=True); time.sleep(60)\n"
        "threading.Thread(target=run).start(); ctypes.CDLL(None).syscall(60 if __import__('os').uname().machine == 'x86_64' else 93, 0)"
    )
    process = started(code)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
        assert [member.pid for member in members(process.pid)] == [process.pid]
        assert resident_bytes(process.pid) > 64 << 20
    finally:
        assert kill_group(process.pid)
        process.communicate()
