"""A child that tries what it may not do, and says how far it got."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from llm4llm.harness.channel import Channel


def read(path: str) -> str:
    return Path(path).read_bytes()[:4096].decode(errors="replace")


def write(path: str) -> str:
    Path(path).write_text("was here")
    return "written"


def append(path: str) -> str:
    """Open for writing, and write nothing."""
    with open(path, "ab"):
        return "opened"


_held: dict[str, Any] = {}


def hold(path: str) -> str:
    """Keep a folder open, with a file of it, and stay in it."""
    os.chdir(path)
    _held["folder"] = os.open(path, os.O_RDONLY)
    _held["file"] = open(os.path.join(path, "calls.pt"), "r+b")  # noqa: SIM115
    return "held"


def use_held(what: str, path: str) -> str:
    """Change what is held, from `path`, where it may write."""
    folder = _held["folder"]
    if what == "make":
        os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    elif what == "make here":
        Path("new").touch()
    elif what == "open":
        os.close(os.open("task.json", os.O_WRONLY, dir_fd=folder))
    elif what == "remove":
        os.unlink("task.json", dir_fd=folder)
    elif what == "link":
        os.symlink("/etc/passwd", "way", dir_fd=folder)
    elif what == "move in":
        os.rename(os.path.join(path, "planted"), "task.json", dst_dir_fd=folder)
    elif what == "move out":
        os.rename("task.json", os.path.join(path, "mine"), src_dir_fd=folder)
    elif what == "name":
        os.link("calls.pt", os.path.join(path, "second"), src_dir_fd=folder)
    elif what == "name by descriptor":
        os.link(f"/proc/self/fd/{_held['file'].fileno()}", os.path.join(path, "second"), follow_symlinks=True)
    elif what == "write":
        _held["file"].write(b"later")
        _held["file"].flush()
    return "done"


def name_thread(name: str) -> str:
    """Of a thread that is not the first one."""
    found: list[str] = []

    def run() -> None:
        own = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        own.write_text(name)
        found.append(own.read_text().strip())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0] if found else "refused"


def listed(path: str) -> str:
    return ",".join(sorted(os.listdir(path)))


def end(pid: int) -> str:
    os.kill(pid, signal.SIGTERM)
    return "signalled"


def connect(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=3):
        return "connected"


def grandchild(path: str) -> str:
    """What a program that it starts may do."""
    done = subprocess.run([sys.executable, "-c", f"print(open({path!r}).read())"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def fill(folder: str) -> str:
    block = b"x" * (1 << 20)
    for number in range(100_000):
        with open(f"{folder}/{number}", "wb") as file:
            file.write(block)
        time.sleep(0.002)
    return "filled"


def fork(count: int) -> str:
    for _ in range(count):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    time.sleep(600)
    return "forked"


def main() -> None:
    channel = Channel.inherited()
    for operation, payload in channel.requests():
        try:
            said: Any = globals()[operation](**payload)
        except OSError as error:
            said = type(error).__name__
        channel.ok({"said": said})


if __name__ == "__main__":
    main()
