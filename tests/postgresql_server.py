"""A real PostgreSQL server on loopback, for as long as it is entered."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def binary(name: str) -> Path:
    """A server program: the newest Debian version, else what PATH holds. Its absence fails the test unless that was asked for."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3].split(".")[0]))
    found = versions[-1] if versions else shutil.which(name)
    if found is None:
        if os.environ.get("LLM4LLM_NO_POSTGRESQL") == "1":
            pytest.skip("LLM4LLM_NO_POSTGRESQL=1: there is no PostgreSQL server on this machine")
        pytest.fail(f"{name} is not here: install the Debian package postgresql, or set LLM4LLM_NO_POSTGRESQL=1 to skip these tests")
    return Path(found)


def unprivileged() -> tuple[list[str], int | None]:
    """What to put before a command so that the server does not run as root, which it refuses; and that user's id."""
    if os.geteuid() != 0:
        return [], None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_uid
    pytest.fail("there is no user that the server could run as")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started() -> Iterator[str]:
    """URL of an empty server's maintenance database, on loopback."""
    initdb, postgres = binary("initdb"), binary("postgres")
    prefix, uid = unprivileged()
    # not pytest's own folder: that is closed to the user that the server runs as
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(folder)}
    try:
        if uid is not None:
            os.chown(folder, uid, -1)
        cluster = folder / "data"
        made = subprocess.run(
            [*prefix, str(initdb), "-D", str(cluster), "-U", "tester", "--auth=trust", "--encoding=UTF8", "--no-sync"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        port = free_port()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*prefix, str(postgres), "-D", str(cluster), "-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"],
                cwd=folder, env=environment, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_for(port, process, folder / "log")
            yield f"postgresql://tester@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="tester", dbname="postgres", connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


@contextlib.contextmanager
def database(server: str) -> Iterator[str]:
    """A new database of its own."""
    import psycopg

    name = f"jobs_{os.urandom(4).hex()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    yield server.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)".encode())
