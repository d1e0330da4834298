"""What uploaded scripts try through the service, and what becomes of it."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Service, serving

from llm4llm.client import Client
from llm4llm.sandbox.isolation import isolation

CURIOUS = """
import json, os, socket, subprocess, sys
from pathlib import Path

home, port = Path(sys.argv[1]), int(sys.argv[2])
found = {}


def attempt(name, action):
    try:
        found[name] = str(action())[:200]
    except Exception as error:
        found[name] = type(error).__name__


def keys():
    seen = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                seen += [one for one in (entry / "environ").read_bytes().decode(errors="replace").split("\\0") if "sk-made-up" in one]
            except OSError:
                pass
    return seen


def others():
    read = []
    for folder, _, files in os.walk(home):
        for file in files:
            try:
                read.append(os.path.join(folder, file)) if Path(folder, file).read_bytes() is not None else None
            except OSError:
                pass
    return [path for path in read if os.getcwd().rpartition("/")[0] not in path and "/harness/" not in path]


attempt("own key", lambda: [name for name in os.environ if "KEY" in name])
attempt("keys of others", keys)
attempt("files of others", others)
attempt("database", lambda: (home / "llm4llm.sqlite3").read_bytes()[:16])
attempt("write outside", lambda: (home.parent / "left.txt").write_text("was here"))
attempt("socket", lambda: socket.create_connection(("127.0.0.1", port), timeout=3))
attempt("by a program", lambda: subprocess.run(["cat", str(home / "llm4llm.sqlite3")], capture_output=True).returncode)
print(json.dumps(found))
"""
FORKING = """
import os, time
for _ in range(400):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
time.sleep(600)
"""
FILLING = """
import time
block = b"x" * (1 << 20)
for number in range(10_000):
    with open(f"{number}.bin", "wb") as file:
        file.write(block)
    time.sleep(0.002)
"""
OUTLIVING = """
import subprocess, sys
code = "import time; time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid, flush=True)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server with a worker that holds a provider's key."""
    if isolation().level != "full":
        pytest.skip(isolation().reason)
    home = tmp_path_factory.mktemp("kept") / "home"
    home.mkdir()
    own = {"OPENAI_API_KEY": "sk-made-up", "LLM4LLM_JOB_DISK_BYTES": str(40 << 20)}
    with serving(home, "", "--workers", "1", **own) as running:
        yield running


def ended(service: Service, script: str, folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The job's last view, and what the script printed."""
    file = folder / "script.py"
    file.write_text(script)
    with Client(service.url) as client:
        job = client.submit(file, list(arguments), [], budget="3m")["id"]
        view = client.wait(job, timeout_s=170)
        return view, client.logs(job, "stdout")


def test_keys_other_jobs_the_database_and_the_network_are_out_of_reach(service: Service, tmp_path: Path) -> None:
    first, _ = ended(service, "print('mine alone')\n", tmp_path)
    assert first["reason"]["code"] == "no_model", first
    with socket.create_server(("127.0.0.1", 0)) as server:
        view, printed = ended(service, CURIOUS, tmp_path, str(service.home), str(server.getsockname()[1]))
    found = json.loads(printed)
    assert found == {
        "own key": "[]",
        "keys of others": "[]",
        "files of others": "[]",
        "database": "PermissionError",
        "write outside": "PermissionError",
        "socket": found["socket"],
        "by a program": "1",
    }
    assert found["socket"] in ("OSError", "PermissionError", "ConnectionRefusedError")
    assert not (service.home.parent / "left.txt").exists()
    assert view["reason"]["code"] == "no_model"


@pytest.mark.parametrize(("script", "words"), [(FORKING, "processes"), (FILLING, "40 MiB")], ids=["forking", "filling the disk"])
def test_a_script_that_takes_too_much_is_ended_and_the_job_says_so(service: Service, tmp_path: Path, script: str, words: str) -> None:
    view, _ = ended(service, script, tmp_path)
    assert view["status"] == "failed"
    assert words in view["reason"]["text"], view
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _running(view["id"]):
        time.sleep(0.1)
    assert _running(view["id"]) == []


STREAMS = """
import os, sys
for stream in ("stdout", "stderr"):
    place = f"../script.{stream}"
    os.unlink(place)
    {put}
try:
    os.unlink("../../" + os.path.basename(os.path.dirname(os.getcwd())) + ".own/lock")
    os.symlink(sys.argv[1], "../../lock")
except OSError:
    pass
"""


@pytest.mark.parametrize("put", ["os.symlink(sys.argv[1], place)", "os.mkfifo(place)", "os.mkdir(place)"], ids=["link", "pipe", "folder"])
def test_streams_that_a_script_replaced_give_nothing_away_and_hold_nobody_up(service: Service, tmp_path: Path, put: str) -> None:
    view, printed = ended(service, STREAMS.replace("{put}", put), tmp_path, str(service.home / "llm4llm.sqlite3"))
    assert "SQLite" not in printed
    with Client(service.url) as client:
        assert "SQLite" not in client.logs(view["id"], "stderr")
    after, said = ended(service, "print('the next one')\n", tmp_path)
    assert (after["reason"]["code"], said) == ("no_model", "the next one\n")


DEEP = """
import os
os.chdir("..")
for name in ("d", "../work/d"):
    start = os.getcwd()
    for _ in range(1500):
        os.mkdir(name)
        os.chdir(name)
        name = "d"
    os.chdir("/")
    os.chdir(start)
print("deep")
"""
PIPE_FOR_SCRIPT = """
import os
os.unlink("script.py")
os.mkfifo("script.py")
os._exit(1)
"""


@pytest.mark.parametrize("script", [DEEP, PIPE_FOR_SCRIPT], ids=["deep folders", "a pipe in the script's place"])
def test_what_a_script_leaves_keeps_no_worker_from_its_work(service: Service, tmp_path: Path, script: str) -> None:
    view, _ = ended(service, script, tmp_path)
    assert view["status"] == "failed", view
    after, said = ended(service, "print('the next one')\n", tmp_path)
    assert (after["reason"]["code"], said) == ("no_model", "the next one\n")
    place = service.home / "jobs" / view["id"]
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (place / "work").exists():
        time.sleep(0.1)
    assert set(os.listdir(place)) <= {"script.stdout", "script.stderr"}
    for _ in range(1500):  # as after a worker that was killed before it could remove them
        (tmp_path / "d").mkdir()
        if (place / "d").exists():
            (place / "d").rename(tmp_path / "d" / "d")
        (tmp_path / "d").rename(place / "d")
    with Client(service.url) as client:
        client.delete(view["id"])
    assert not place.exists()
    assert not place.with_name(f"{place.name}.own").exists()


def test_nothing_outlives_its_job(service: Service, tmp_path: Path) -> None:
    _, printed = ended(service, OUTLIVING, tmp_path)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and os.path.exists(f"/proc/{int(printed)}"):
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{int(printed)}")


def _running(job: str) -> list[int]:
    """Processes that work in the job's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if job in os.readlink(entry / "cwd"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_cancelling_ends_a_script_that_sleeps(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import time\nwhile True:\n    try:\n        time.sleep(600)\n    except BaseException:\n        pass\n")
    with Client(service.url) as client:
        job = client.submit(file, budget="10m")["id"]
        deadline = time.monotonic() + 60
        while client.job(job)["stage"] != "capture" or not _running(job):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        client.cancel(job)
        view = client.wait(job, timeout_s=30)
    assert view["status"] == "cancelled", view
    assert _running(job) == []
