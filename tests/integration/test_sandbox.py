"""Real children that die, hang, multiply, eat memory and write what they must not: each ends as a value, and nothing is left."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm4llm.errors import BadInterpreter, InfraError
from llm4llm.kit import members
from llm4llm.sandbox import Child, ChildSpec, Failed, Files, Limits, Ok, Sandbox, scrubbed

CHILDREN = Path(__file__).parent / "sandbox_children"
UNLIMITED = Limits()
pytestmark = pytest.mark.timeout(120)

Start = Callable[..., Child]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def gone(pids: list[int], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as opened:
        yield opened


@pytest.fixture
def start(sandbox: Sandbox, tmp_path: Path) -> Start:
    def started(limits: Limits = UNLIMITED, **variables: str) -> Child:
        environment = {**scrubbed(os.environ), "PYTHONPATH": str(CHILDREN), **variables}
        return sandbox.start(ChildSpec("misbehaving", sys.executable, tmp_path, environment=environment, limits=limits))

    return started


def test_answers_events_and_a_peaceful_end(start: Start) -> None:
    child = start()
    seen: list[int] = []
    assert child.request("echo", {"a": [1, None, "ü"]}, 60) == Ok({"a": [1, None, "ü"]})
    assert child.request("count", {"to": 3}, 60, lambda event: seen.append(event["number"])) == Ok({})
    assert seen == [0, 1, 2]
    assert child.alive
    assert child.close() == 0
    assert not child.alive


def test_an_error_of_its_own_leaves_the_child_usable(start: Start) -> None:
    with start() as child:
        answer = child.request("refuse", {}, 60)
        assert isinstance(answer, Failed)
        assert (answer.kind, answer.reason, answer.exit_code) == ("unsuitable", "not today", None)
        assert child.request("echo", {}, 60) == Ok({})


def test_death_is_a_value_with_exit_code_and_last_words(start: Start) -> None:
    child = start()
    answer = child.request("exit", {"code": 7}, 60)
    assert isinstance(answer, Failed)
    assert (answer.kind, answer.exit_code) == ("died", 7)
    assert "exit code 7" in answer.reason
    assert "last words" in answer.stderr_tail
    again = child.request("echo", {}, 60)
    assert isinstance(again, Failed)
    assert again.kind == "died"


@pytest.mark.parametrize(
    ("op", "payload", "number"), [("signal", {"number": int(signal.SIGTERM)}, signal.SIGTERM), ("crash", {}, signal.SIGSEGV)]
)
def test_a_signal_is_named(start: Start, op: str, payload: dict[str, int], number: signal.Signals) -> None:
    answer = start().request(op, payload, 60)
    assert isinstance(answer, Failed)
    assert (answer.kind, answer.exit_code) == ("died", -number)
    assert number.name in answer.reason


def test_a_request_has_a_time_limit(start: Start) -> None:
    child = start()
    answer = child.request("hang", {}, 1.0)
    assert isinstance(answer, Failed)
    assert answer.kind == "timeout"
    assert gone([child.pid])


def test_a_child_has_a_time_limit(start: Start) -> None:
    answer = start(Limits(wall_s=1.5)).request("hang", {}, 60)
    assert isinstance(answer, Failed)
    assert answer.kind == "timeout"
    assert "1.5 s" in answer.reason


def test_memory_is_limited(start: Start) -> None:
    answer = start(Limits(memory_bytes=400 << 20)).request("eat", {}, 60)
    assert isinstance(answer, Failed)
    assert answer.kind == "oom"
    assert "400 MiB" in answer.reason


def test_the_number_of_processes_is_limited(start: Start) -> None:
    child = start(Limits(processes=3))
    child.request("fork", {"count": 6, "own_session": False}, 60)
    answer = child.request("hang", {}, 60)
    assert isinstance(answer, Failed)
    assert answer.kind == "processes"


def test_written_files_are_limited(start: Start, tmp_path: Path) -> None:
    with start(Limits(file_bytes=1 << 20)) as child:
        assert child.request("write", {"path": str(tmp_path / "large"), "bytes": 2 << 20}, 60) == Ok({"error": "File too large"})
        assert child.request("write", {"path": str(tmp_path / "small"), "bytes": 1 << 10}, 60) == Ok({"error": None})


@pytest.mark.parametrize("own_session", [False, True])
def test_grandchildren_end_with_the_child(start: Start, own_session: bool) -> None:
    child = start()
    answer = child.request("fork", {"count": 2, "own_session": own_session}, 60)
    assert isinstance(answer, Ok)
    assert all(map(alive, answer.result["pids"]))
    child.kill()
    assert gone([child.pid, *answer.result["pids"]])


@pytest.mark.parametrize("own_session", [False, True])
def test_grandchildren_end_when_the_child_ends_by_itself(start: Start, own_session: bool) -> None:
    child = start()
    answer = child.request("fork", {"count": 2, "own_session": own_session}, 60)
    assert isinstance(answer, Ok)
    assert child.close() == 0
    assert gone(answer.result["pids"])


@pytest.mark.parametrize("text", ["rubbish\n", "[1]\n", '{"nonce": "guessed", "id": 1, "ok": {}}\n', '{"id": 1, "ok": {"passed": true}}\n'])
def test_what_generated_code_writes_to_the_channel_is_no_answer(start: Start, text: str) -> None:
    answer = start().request("garbage", {"text": text}, 60)
    assert isinstance(answer, Failed)
    assert answer.kind == "protocol"


def test_a_closed_channel_is_no_answer(start: Start) -> None:
    child = start()
    answer = child.request("close", {}, 60)
    assert isinstance(answer, Failed)
    assert answer.kind == "died"
    assert "closed its channel" in answer.reason
    assert gone([child.pid])


def test_a_flood_of_output_blocks_nobody_and_its_end_is_kept(start: Start) -> None:
    child = start()
    assert child.request("flood", {"lines": 20_000}, 60) == Ok({})
    child.close()
    assert child.stderr_tail().endswith("the end\n")
    assert len(child.stderr_tail()) <= 32 * 1024


def test_an_exception_while_an_event_is_handled_kills_the_child(start: Start) -> None:
    child = start()

    def interrupt(event: dict[str, object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.request("count", {"to": 3}, 60, interrupt)
    assert gone([child.pid])


def test_no_file_descriptor_and_no_process_is_left(start: Start) -> None:
    start().close()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        start().close()
        start().request("exit", {"code": 1}, 60)
        start().kill()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_only_given_variables_are_seen(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_API_KEY", "made-up")
    with start(GIVEN="yes") as child:
        answer = child.request("variables", {}, 60)
    assert isinstance(answer, Ok)
    assert answer.result["GIVEN"] == "yes"
    assert "SOME_SERVICE_API_KEY" not in answer.result
    assert answer.result["LLM4LLM_ORIGINAL_PYTHONPATH"] == str(CHILDREN)
    assert answer.result["PYTHONPATH"].split(os.pathsep)[1] == str(CHILDREN)
    assert "LLM4LLM_ORIGINAL_PYTHONSAFEPATH" not in answer.result
    assert not any("NONCE" in name for name in answer.result)


@pytest.mark.parametrize("network", [True, False])
def test_the_network_can_be_taken_away(sandbox: Sandbox, start: Start, network: bool) -> None:
    if not network and not (sandbox.facts().prefix or sandbox.facts().landlock >= 4):
        pytest.skip(sandbox.facts().reason)
    with socket.create_server(("127.0.0.1", 0)) as server, start(Limits(network=network)) as child:
        answer = child.request("connect", {"port": server.getsockname()[1]}, 60)
    assert isinstance(answer, Ok)
    assert answer.result["connected"] is network


def test_closing_the_sandbox_ends_what_was_forgotten(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path)
    child = sandbox.start(ChildSpec("misbehaving", sys.executable, tmp_path, environment={**os.environ, "PYTHONPATH": str(CHILDREN)}))
    sandbox.close()
    assert gone([child.pid])


def test_nothing_survives_a_killed_parent(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(CHILDREN / "orphaning.py"), str(tmp_path), str(CHILDREN)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert len(pids) == 3
        assert all(map(alive, pids))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert gone(pids)


def test_an_interpreter_that_is_none(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(BadInterpreter, match="no-such-python"):
        sandbox.start(ChildSpec("misbehaving", str(tmp_path / "no-such-python"), tmp_path))
    with pytest.raises(InfraError, match="gone"):
        sandbox.start(ChildSpec("misbehaving", sys.executable, tmp_path / "gone"))


@pytest.mark.parametrize("confined", [True, False])
def test_an_interpreter_that_is_none_is_named_and_nothing_is_left(sandbox: Sandbox, tmp_path: Path, confined: bool) -> None:
    files = Files(sandbox.hidden, (tmp_path,), (tmp_path,)) if confined else None
    (tmp_path / "text").write_text("no program")
    sandbox._guardian.ready()
    before = len(os.listdir("/proc/self/fd")), len(members(os.getpid()))
    for start in (sandbox.start, sandbox.execute):
        for name, words in (("no-such-python", "No such file"), ("text", "Permission denied")):
            with pytest.raises(BadInterpreter, match=f"{name}.*{words}"):
                start(ChildSpec("misbehaving", str(tmp_path / name), tmp_path, files=files))
        with pytest.raises(BadInterpreter, match=r"no-such-python can't run the script \(No such file"):
            start(ChildSpec("misbehaving", "no-such-python", tmp_path, environment={"PATH": os.environ["PATH"]}, files=files))
        with pytest.raises(InfraError, match="gone"):
            start(ChildSpec("misbehaving", sys.executable, tmp_path / "gone", files=files))
    assert (len(os.listdir("/proc/self/fd")), len(members(os.getpid()))) == before


def test_executing_a_confined_child(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "writing.py").write_text(
        "import sys\ntry:\n    open(sys.argv[1], 'w')\nexcept PermissionError:\n    sys.exit(9)\n"
    )
    mine = tmp_path / "mine"
    files = Files(sandbox.hidden, (mine,), (mine,))
    codes = [
        sandbox.execute(ChildSpec("writing", sys.executable, mine, (str(place),), {"PYTHONPATH": str(mine)}, files=files))
        for place in (mine / "new", tmp_path / "new")
    ]
    assert codes == [0, 9 if sandbox.facts().landlock else 0]


def in_foreground(tmp_path: Path, code: str, *arguments: str) -> list[str]:
    """A command line: a parent that executes `code` as a child module on its own terminal and exits as it does."""
    (tmp_path / "foreground_child.py").write_text(code)
    parent = (
        "import os, sys; from pathlib import Path; from llm4llm.sandbox import *\n"
        f"box = Sandbox(Path({str(tmp_path)!r}))\n"
        f"environment = {{**os.environ, 'PYTHONPATH': {str(tmp_path)!r}}}\n"
        f"spec = ChildSpec('foreground_child', sys.executable, Path({str(tmp_path)!r}), {arguments!r}, environment)\n"
        "code = box.execute(spec); box.close(); sys.exit(code if code >= 0 else 128 - code)\n"
    )
    return [sys.executable, "-c", parent]


def foreground_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def test_execute_hands_over_the_standard_streams(tmp_path: Path) -> None:
    code = "import sys; print(input()[::-1], *sys.argv[1:]); print('aside', file=sys.stderr); sys.exit(5)"
    done = subprocess.run(
        in_foreground(tmp_path, code, "--flag", "v"),
        input="abc\n",
        env=foreground_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("cba --flag v\n", "aside\n", 5)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 42), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_execute_passes_signals_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    child = (
        "import os, sys, time\ntry:\n    print(os.getpid(), flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit(42)"
    )
    command = in_foreground(tmp_path, child)
    with subprocess.Popen(command, env=foreground_environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(number)
        assert parent.wait(30) == code
        assert gone([pid])
        assert not members(pid)
