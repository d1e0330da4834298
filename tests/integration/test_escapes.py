"""What a confined child tries, and what becomes of it."""

import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm4llm.kit import members, take_untrusted
from llm4llm.launcher import seccomp
from llm4llm.launcher.landlock import abi
from llm4llm.sandbox import Child, ChildSpec, Failed, Files, Limits, Ok, Sandbox
from llm4llm.sandbox.isolation import isolation

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
    from llm4llm.sandbox.isolation import Isolation

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


@pytest.mark.parametrize("kind", ["oom", "disk"])
def test_open_files_without_a_name_are_counted(home: Path, kind: str) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        limits = Limits(memory_bytes=200 << 20, disk_bytes=200 << 20, disk_folders=(mine,), network=False)
        hoarding = sandbox.start(spec(home, limits, Files(sandbox.hidden, (mine,), (mine,))))
        answer = hoarding.request("hoard", {"mebibytes": 250, "folder": "" if kind == "oom" else str(mine)}, 10)
    assert isinstance(answer, Failed)
    assert answer.kind == kind


def test_what_is_mapped_and_open_counts_once(home: Path) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        limits = Limits(memory_bytes=250 << 20, network=False)
        sharing = sandbox.start(spec(home, limits, Files(sandbox.hidden, (mine,), (mine,))))
        assert said(sharing, "share", mebibytes=150) == "shared"


@pytest.mark.parametrize("operation", ["zombies", "threads"])
def test_threads_and_zombies_are_limited(home: Path, operation: str) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        limits = Limits(processes=12, tasks=50, network=False)
        answer = sandbox.start(spec(home, limits, Files(sandbox.hidden, (mine,), (mine,)))).request(operation, {"count": 60}, 10)
    assert isinstance(answer, Failed)
    assert (answer.kind, answer.reason.partition(" and")[0]) == ("processes", "it had more than 50 threads")


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_nothing_of_its_environment_or_folder_counts_before_it_is_confined(child: Child) -> None:
    head = Path(f"/proc/{child.pid}")
    assert [one.partition("=")[0] for one in (head / "environ").read_text().split("\0") if one] == ["LLM4LLM_PARENT"]
    assert os.readlink(head / "cwd") == "/"
    assert "mine" not in (head / "cmdline").read_text()


def test_the_dynamic_linker_takes_up_its_code_after_it_was_confined(home: Path) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        there = spec(home, Limits(network=False), Files(sandbox.hidden, (mine,), (mine,)))
        there.environment["LD_PRELOAD"] = "no-such.so"
        preloading = sandbox.start(there)
        assert said(preloading, "write", path=str(mine / "output.txt")) == "written"
        preloading.kill()
    # said by every program that starts with this variable
    assert preloading.stderr_tail().count("cannot be preloaded") == 1


def test_a_program_of_its_own_is_started_after_it_was_confined(home: Path, tmp_path: Path) -> None:
    mine = home / "jobs" / "mine"
    (mine / "python").write_text(f"#!/bin/sh\necho mine > {mine}/ran; echo theirs > {tmp_path}/left.txt; exit 7\n")
    (mine / "python").chmod(0o755)
    with Sandbox(home) as sandbox:
        found = ChildSpec(
            "escaping",
            "python",
            mine,
            environment={"PATH": ".:/usr/bin:/bin"},
            limits=Limits(network=False),
            files=Files(sandbox.hidden, (mine,), (mine,)),
            channel=False,
        )
        assert sandbox.start(found).wait(30) == 7
    assert (mine / "ran").read_text() == "mine\n"
    assert not (tmp_path / "left.txt").exists()


needs_filter = pytest.mark.skipif(not seccomp.available(), reason="this kernel takes no filters of system calls")
COLUMN = list(seccomp._ARCHITECTURES).index(os.uname().machine) if seccomp.available() else 0


@needs_filter
def test_nobody_elses_limits_are_changed(child: Child) -> None:
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            for pid in (bystander.pid, os.getpid(), child.pid):
                assert said(child, "limit", pid=pid) == "PermissionError"
            assert bystander.poll() is None
        finally:
            bystander.kill()
    assert said(child, "limit_itself") == "300"


@needs_filter
@pytest.mark.parametrize("name", sorted(seccomp._REFUSED))
def test_calls_that_no_script_needs_are_refused(child: Child, name: str) -> None:
    assert said(child, "call", number=seccomp._REFUSED[name][COLUMN], arguments=[0] * 6) == "PermissionError"


@needs_filter
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("prlimit64", [1, 7, 0, 0]),
        ("setpriority", [0, 1, 19]),
        ("setpriority", [1, 0, 19]),
        ("setpriority", [2, 0, 19]),
        ("ioprio_set", [1, 1, 0]),
        ("ioprio_set", [3, 0, 0]),
        ("migrate_pages", [1, 0, 0, 0]),
        ("move_pages", [1, 0, 0, 0, 0, 0]),
    ],
)
def test_calls_that_reach_others_are_refused(child: Child, name: str, arguments: list[int]) -> None:
    assert said(child, "call", number=seccomp._ON_ITSELF[name][0][COLUMN], arguments=arguments) == "PermissionError"


@needs_filter
def test_nobody_waits_for_a_lease_of_its(child: Child, home: Path) -> None:
    for path in (home.parent / "beside.txt", home / "jobs" / "mine" / "input.txt"):
        assert said(child, "lease", path=str(path)) == "PermissionError"
        before = time.monotonic()
        path.read_text()
        assert time.monotonic() - before < 5


@needs_filter
def test_sockets_are_of_few_families(child: Child) -> None:
    for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
        assert said(child, "socket_of", family=family) == "made"
    for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET, socket.AF_TIPC):
        assert said(child, "socket_of", family=family) == "PermissionError"


def test_jobs_share_no_memory_and_no_queues_by_number(child: Child) -> None:
    facts = isolation()
    if "--ipc" not in facts.prefix:
        pytest.skip(facts.reason)
    assert os.readlink(f"/proc/{child.pid}/ns/ipc") != os.readlink("/proc/self/ns/ipc")


@needs_filter
@pytest.mark.parametrize("flag", [0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_namespace_is_made(child: Child, flag: int) -> None:
    assert said(child, "call", number=seccomp._UNSHARE[COLUMN], arguments=[flag]) == "PermissionError"
    if flag != 0x80:
        assert said(child, "call", number=seccomp._CLONE[COLUMN], arguments=[flag | 17, 0, 0, 0, 0]) == "PermissionError"


@needs_filter
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="other ways to ask for the same are x86's")
def test_other_ways_to_ask_for_the_same_are_shut(child: Child) -> None:
    assert said(child, "call", number=0x40000000 | 302, arguments=[1, 7, 0, 0]) == "PermissionError"
    assert said(child, "call_as_i386", number=20) == "-1"  # getpid


@needs_filter
def test_what_ordinary_scripts_do_works(home: Path) -> None:
    with tempfile.TemporaryDirectory() as short, Sandbox(home) as sandbox:  # names of sockets are at most 100 bytes long
        ordinary = sandbox.start(spec(home, Limits(network=False), Files(sandbox.hidden, (Path(short),), (Path(short),))))
        assert said(ordinary, "workers", folder=short) == "[0, 1, 2, 3, 4, 5, 6, 7] [1, 2] said"


def test_no_terminal_and_no_disk_is_there(child: Child) -> None:
    ours, theirs = pty.openpty()
    try:
        name = os.ttyname(theirs)
        for operation in ("read", "append", "write"):
            assert said(child, operation, path=name) == "PermissionError"
    finally:
        os.close(ours)
        os.close(theirs)
    for path in ("/dev/ptmx", "/dev/tty", "/dev/kmsg", "/dev/vda", "/dev/vcs"):
        if os.path.exists(path):
            assert said(child, "append", path=path) == "PermissionError", path
    assert said(child, "listed", path="/dev") == "PermissionError"
    assert said(child, "write", path="/dev/full") == "OSError"
    assert said(child, "append", path="/dev/stderr") == "opened"


@pytest.mark.parametrize("peacefully", [True, False])
def test_a_daemon_ends_with_its_job(child: Child, peacefully: bool) -> None:
    daemon = int(said(child, "daemon", command=["/bin/sleep", "600"]))
    assert not gone(daemon)
    assert daemon in {member.pid for member in members(child.pid)}
    assert (child.close() == 0) if peacefully else (child.kill() < 0)
    assert gone(daemon)


@pytest.mark.parametrize("peacefully", [True, False])
def test_a_process_that_never_stays_the_same_ends_with_its_job(child: Child, home: Path, peacefully: bool) -> None:
    mark = home / "jobs" / "mine" / "mark"
    assert said(child, "hop", path=str(mark)) == "hopping"
    time.sleep(0.3)
    assert mark.exists()
    child.close() if peacefully else child.kill()
    size = mark.stat().st_size
    time.sleep(0.3)
    assert mark.stat().st_size == size


def test_nothing_is_left_when_the_head_of_its_family_gets_no_time(child: Child, home: Path) -> None:
    mark = home / "jobs" / "mine" / "mark"
    for _ in range(4):
        assert said(child, "hop", path=str(mark)) == "hopping"
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(0.3)
    before = time.monotonic()
    child.kill()
    assert time.monotonic() - before < 10
    size = mark.stat().st_size
    time.sleep(0.5)
    assert mark.stat().st_size == size


def test_daemons_are_counted(home: Path) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        limits = Limits(processes=12, memory_bytes=200 << 20, network=False)
        answers = [
            sandbox.start(spec(home, limits, Files(sandbox.hidden, (mine,), (mine,)))).request(operation, payload, 120)
            for operation, payload in (("daemons", {"count": 20}), ("hungry_daemon", {"mebibytes": 250}))
        ]
    assert [answer.kind for answer in answers if isinstance(answer, Failed)] == ["processes", "oom"]


def test_a_child_does_not_reach_the_head_of_its_family(child: Child) -> None:
    if abi() < 6:
        pytest.skip("this kernel's Landlock knows no scopes")
    assert int(said(child, "head")) == child.pid
    assert said(child, "kill_head") == "PermissionError"
    assert said(child, "read", path=f"/proc/{child.pid}/environ") == "PermissionError"


def test_a_stop_of_a_traced_child_is_not_its_end(child: Child) -> None:
    answer = child.request("be_traced", {}, 2)
    assert isinstance(answer, Failed)
    assert (answer.kind, answer.exit_code) == ("timeout", -signal.SIGKILL)


def test_limits_of_the_kernel_hold_before_it_runs(home: Path) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        limited = sandbox.start(spec(home, Limits(file_bytes=1 << 20, network=False), Files(sandbox.hidden, (mine,), (mine,))))
        assert said(limited, "kernel_limits") == "(0, 0) (1048576, 1048576)"


@pytest.mark.parametrize(
    ("operation", "payload", "reason"),
    [("dig", {"levels": 150}, "100 levels"), ("touch", {"folder": ".", "count": 4000}, "more than 10 MiB")],
)
def test_names_fill_the_disk_as_well(home: Path, operation: str, payload: dict[str, object], reason: str) -> None:
    mine = home / "jobs" / "mine"
    with Sandbox(home) as sandbox:
        limits = Limits(disk_bytes=10 << 20, disk_folders=(mine,), network=False)
        answer = sandbox.start(spec(home, limits, Files(sandbox.hidden, (mine,), (mine,)))).request(operation, payload, 60)
    assert isinstance(answer, Failed)
    assert answer.kind == "disk"
    assert reason in answer.reason
