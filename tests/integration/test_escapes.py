"""What a confined child tries, and what becomes of it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm4llm.kit import members, take_untrusted
from llm4llm.sandbox import Child, ChildSpec, Failed, Files, Limits, Ok, Sandbox

CHILDREN = Path(__file__).parent / "sandbox_children"


@pytest.fixture(scope="module", autouse=True)
def needs_landlock(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Sandbox(tmp_path_factory.mktemp("home")) as sandbox:
        if not sandbox.facts().landlock:
            pytest.skip(sandbox.facts().reason)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with another job's folder in it."""
    home = tmp_path / "kept" / "home"
    (home / "jobs" / "other").mkdir(parents=True)
    (home / "jobs" / "other" / "script.py").write_text("weights = 'theirs'")
    (home / "jobs" / "mine").mkdir()
    (home / "jobs" / "mine" / "input.txt").write_text("mine")
    (home / "llm4llm.sqlite3").write_text("rows")
    (tmp_path / "kept" / "beside.txt").write_text("beside")
    return home


@pytest.fixture
def child(home: Path) -> Iterator[Child]:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        yield sandbox.start(spec(home, Limits(network=False), Files(sandbox.hidden, (mine,), (mine,))))


def spec(home: Path, limits: Limits, files: Files) -> ChildSpec:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHILDREN)}
    return ChildSpec("escaping", sys.executable, home / "jobs" / "mine", environment=environment, limits=limits, files=files)


def said(child: Child, operation: str, **payload: object) -> str:
    answer = child.request(operation, payload, 60)
    assert isinstance(answer, Ok), answer
    return str(answer.result["said"])


def test_own_files_are_there_and_everything_ordinary_can_be_read(child: Child, home: Path) -> None:
    mine = home / "jobs" / "mine"
    assert said(child, "read", path=str(mine / "input.txt")) == "mine"
    assert said(child, "write", path=str(mine / "output.txt")) == "written"
    assert said(child, "listed", path=str(mine)) == "input.txt,output.txt"
    assert said(child, "read", path=str(home.parent / "beside.txt")) == "beside"
    assert said(child, "read", path=__file__).startswith('"""What a confined child tries')
    assert said(child, "write", path="/dev/null") == "written"


def test_other_jobs_and_the_database_are_out_of_reach(child: Child, home: Path) -> None:
    theirs = home / "jobs" / "other" / "script.py"
    (home / "jobs" / "mine" / "link").symlink_to(theirs)
    (home.parent / "shortcut").symlink_to(home)
    for path in (theirs, home / "llm4llm.sqlite3", home / "jobs" / "mine" / "link", home.parent / "shortcut" / "llm4llm.sqlite3"):
        assert said(child, "read", path=str(path)) == "PermissionError", path
        assert said(child, "write", path=str(path)) == "PermissionError", path
        assert "PermissionError" in said(child, "grandchild", path=str(path)), path
    assert said(child, "listed", path=str(home / "jobs" / "other")) == "PermissionError"
    assert theirs.read_text() == "weights = 'theirs'"


def test_nothing_is_written_outside_its_own_folder(child: Child, home: Path) -> None:
    for path in (home.parent / "beside.txt", home.parent / "new.txt", Path("/etc/hostname"), Path(__file__).parent / "new.txt"):
        assert said(child, "write", path=str(path)) == "PermissionError", path
    assert (home.parent / "beside.txt").read_text() == "beside"


def test_what_was_moved_out_of_reach_stays_as_it_is_but_for_files_that_were_open(home: Path) -> None:
    mine, own = home / "jobs" / "mine", home / "jobs" / "mine.own"
    task, place = mine / "tasks" / "t_1", own / "tasks" / "t_1"
    task.mkdir(parents=True)
    own.mkdir()
    for file in (task / "task.json", task / "calls.pt", mine / "planted"):
        file.write_text("x")
    with Sandbox(home) as sandbox:
        child = sandbox.start(spec(home, Limits(network=False), Files(sandbox.hidden, (mine, own), (mine,))))
        assert said(child, "hold", path=str(task)) == "held"
        assert said(child, "use_held", what="make", path=str(mine)) == "done"
        (task / "new").unlink()
        take_untrusted(mine, ("tasks", "t_1"), place, 10, 1000)
        refused = ("make", "make here", "open", "remove", "link", "move in", "move out", "name", "name by descriptor")
        answers = {what: said(child, "use_held", what=what, path=str(mine)) for what in refused}
        assert set(answers.values()) <= {"PermissionError", "OSError"}, answers
        assert {file.name: file.read_text() for file in place.iterdir()} == {"task.json": "x", "calls.pt": "x"}
        assert said(child, "use_held", what="write", path=str(mine)) == "done"  # the input of its own task
        assert said(child, "read", path=str(place / "task.json")) == "x"


def test_its_own_threads_can_be_named_as_cuda_does_and_nothing_else_of_the_kernel(child: Child) -> None:
    assert said(child, "name_thread", name="made-up") == "made-up"
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            theirs = f"/proc/{bystander.pid}"
            for path in (f"{theirs}/task/{bystander.pid}/comm", f"{theirs}/oom_score_adj", "/proc/sys/kernel/core_pattern"):
                assert said(child, "append", path=path) == "PermissionError", path
        finally:
            bystander.kill()


def test_a_provider_key_of_another_process_can_not_be_read(child: Child) -> None:
    code = "import time; print('up', flush=True); time.sleep(600)"
    environment = {**os.environ, "OPENAI_API_KEY": "made-up-key"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            assert "made-up-key" in Path(f"/proc/{holder.pid}/environ").read_text()  # anybody else of this user can
            assert said(child, "read", path=f"/proc/{holder.pid}/environ") == "PermissionError"
            assert said(child, "read", path=f"/proc/{os.getpid()}/environ") == "PermissionError"
        finally:
            holder.kill()


def test_no_signal_reaches_a_process_outside(child: Child, home: Path) -> None:
    with Sandbox(home) as sandbox:
        if sandbox.facts().landlock < 6:
            pytest.skip(sandbox.facts().reason)
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            assert said(child, "end", pid=bystander.pid) == "PermissionError"
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_no_socket_reaches_the_network(child: Child) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert said(child, "connect", port=server.getsockname()[1]) in ("PermissionError", "OSError", "ConnectionRefusedError")


def test_without_a_network_namespace_tcp_is_refused_by_landlock(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm4llm.sandbox import start
    from llm4llm.sandbox.isolation import Isolation, isolation

    if isolation().landlock < 4:
        pytest.skip(isolation().reason)
    monkeypatch.setattr(start, "isolation", lambda: Isolation((), isolation().landlock, "as on a machine without namespaces"))
    mine = home / "jobs" / "mine"
    with socket.create_server(("127.0.0.1", 0)) as server, Sandbox(home) as sandbox:
        port = server.getsockname()[1]
        for files in (None, Files(sandbox.hidden, (mine,), (mine,))):
            cut_off = sandbox.start(ChildSpec(**{**vars(spec(home, Limits(network=False), Files(()))), "files": files}))
            assert said(cut_off, "connect", port=port) == "PermissionError"
        free = sandbox.start(spec(home, Limits(), Files(sandbox.hidden, (mine,), (mine,))))
        assert said(free, "connect", port=port) == "connected"


def test_filling_the_disk_ends_it(home: Path) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        limits = Limits(disk_bytes=30 << 20, disk_folders=(mine,), network=False)
        greedy = sandbox.start(spec(home, limits, Files(sandbox.hidden, (mine,), (mine,))))
        answer = greedy.request("fill", {"folder": str(mine)}, 120)
    assert isinstance(answer, Failed)
    assert (answer.kind, answer.reason) == ("disk", "it wrote more than 30 MiB")


def test_forking_past_the_limit_ends_the_whole_family(home: Path) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        many = sandbox.start(spec(home, Limits(processes=12, network=False), Files(sandbox.hidden, (mine,), (mine,))))
        answer = many.request("fork", {"count": 40}, 120)
        assert isinstance(answer, Failed)
        assert answer.kind == "processes"
        deadline = time.monotonic() + 10
        while members(many.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert members(many.pid) == []
