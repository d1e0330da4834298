"""A child that tries what it may not do, and says how far it got."""

import ctypes
import fcntl
import mmap
import os
import resource
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


def hoard(mebibytes: int, folder: str) -> str:
    """Fill an open file without a name, in memory or in a folder."""
    if folder:
        _held["unnamed"] = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    else:
        _held["unnamed"] = os.memfd_create("mine")
    for _ in range(mebibytes):
        os.write(_held["unnamed"], b"x" * (1 << 20))
    time.sleep(600)
    return "held"


def share(mebibytes: int) -> str:
    """Memory that is both mapped and an open file counts once."""
    _held["shared"] = os.memfd_create("mine")
    os.ftruncate(_held["shared"], mebibytes << 20)
    page = mmap.mmap(_held["shared"], mebibytes << 20)
    for at in range(0, len(page), 4096):
        page[at] = 1
    time.sleep(4)
    return "shared"


def zombies(count: int) -> str:
    for _ in range(count):
        if os.fork() == 0:
            os._exit(0)
    time.sleep(600)
    return "ended"


def threads(count: int) -> str:
    for _ in range(count):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    time.sleep(600)
    return "started"


def daemon(command: list[str]) -> str:
    """The number of a process in a session of its own, whose parent has ended, and that has nothing of our environment."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            os.execve(command[0], command, {})
        os._exit(0)
    os.wait()
    return os.read(reader, 20).decode()


def daemons(count: int) -> str:
    for _ in range(count):
        daemon(["/bin/sleep", "600"])
    time.sleep(600)
    return "there"


def hungry_daemon(mebibytes: int) -> str:
    daemon([sys.executable, "-c", f"held = b'x' * ({mebibytes} << 20); import time; time.sleep(600)"])
    time.sleep(600)
    return "fed"


def hop(path: str) -> str:
    """A process that ends as soon as it has started its successor, which makes a session of its own; it leaves its mark each time."""
    if os.fork() == 0:
        os.close(1)
        os.close(2)
        os.closerange(3, 100)
        while True:
            if os.fork() != 0:
                os._exit(0)
            os.setsid()
            with open(path, "a") as file:
                file.write(".")
    return "hopping"


def head() -> str:
    return str(os.getppid())


def kill_head() -> str:
    os.kill(os.getppid(), signal.SIGKILL)
    return "killed"


def be_traced() -> str:
    """Stop, and have the parent told of it."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    signal.raise_signal(signal.SIGUSR1)
    return "went on"


def limit(pid: int) -> str:
    resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1))
    return "limited"


def lease(path: str) -> str:
    """Have everybody wait who opens a file that can only be read."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    _held["lease"] = os.open(path, os.O_RDONLY)
    fcntl.fcntl(_held["lease"], fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return "leased"


def socket_of(family: int) -> str:
    socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM).close()
    return "made"


def limit_itself() -> str:
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    os.nice(1)
    return str(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def kernel_limits() -> str:
    return f"{resource.getrlimit(resource.RLIMIT_CORE)} {resource.getrlimit(resource.RLIMIT_FSIZE)}"


def call(number: int, arguments: list[int]) -> str:
    """A system call by its number."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "done"


def call_as_i386(number: int) -> str:
    """By the gate of 32-bit programs: mov eax, NUMBER; int 0x80; ret."""
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8" + number.to_bytes(4, "little") + b"\xcd\x80\xc3")
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return str(ctypes.CFUNCTYPE(ctypes.c_int)(start)())


def dig(levels: int) -> str:
    for _ in range(levels):
        os.mkdir("d")
        os.chdir("d")
    time.sleep(600)
    return "dug"


def touch(folder: str, count: int) -> str:
    for number in range(count):
        open(f"{folder}/{number}", "wb").close()
    time.sleep(600)
    return "touched"


def workers(folder: str) -> str:
    """What ordinary scripts do: torch's workers, a pool of processes, a thread, and a program."""
    import multiprocessing

    from torch.utils.data import DataLoader

    os.environ["TMPDIR"] = folder
    loaded = [int(number) for batch in DataLoader(list(range(8)), batch_size=2, num_workers=2) for number in batch]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        doubled = pool.map(abs, [-1, -2])
    printed = subprocess.run(["/bin/echo", "said"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{loaded} {doubled} {printed}"


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
