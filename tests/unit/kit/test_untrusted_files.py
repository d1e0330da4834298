"""Reading and writing where somebody else can put links, pipes and folders."""

import fcntl
import os
import signal
import socket
from pathlib import Path

import pytest

from llm4llm.kit import open_plain, open_untrusted, tail, write_untrusted


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "inner").mkdir(parents=True)
    return tmp_path / "root"


def read(root: Path, *parts: str) -> bytes:
    with open_untrusted(root, *parts) as file:
        return file.read()


def test_plain_files_are_read(root: Path) -> None:
    (root / "a").write_text("one")
    (root / "inner" / "b").write_text("two")
    assert (read(root, "a"), read(root, "inner", "b")) == (b"one", b"two")
    assert tail(root / "a") == "one"


def test_links_pipes_and_folders_are_no_files(root: Path, secret: Path) -> None:
    (root / "link").symlink_to(secret)
    (root / "way").symlink_to(secret.parent)
    os.mkfifo(root / "pipe")
    for parts in (("link",), ("way", "file.txt"), ("pipe",), ("inner",), ("absent",), ("absent", "file")):
        with pytest.raises(FileNotFoundError):
            read(root, *parts)
    assert tail(root / "link") == tail(root / "pipe") == ""


def test_a_file_that_its_owner_makes_unreadable_is_as_good_as_absent(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    (root / "leased").touch()
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # tells the owner of a lease that somebody else wants the file
    with (root / "leased").open("r+") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        for name in ("socket", "leased"):
            with pytest.raises(FileNotFoundError):
                read(root, name)
    signal.signal(signal.SIGIO, before)


def test_a_plain_file_may_be_reached_by_a_link_and_a_pipe_is_none(root: Path, secret: Path) -> None:
    (root / "link").symlink_to(secret)
    os.mkfifo(root / "pipe")
    with open_plain(root / "link") as file:
        assert file.read() == b"secret"
    for name in ("pipe", "inner", "absent"):
        with pytest.raises(FileNotFoundError):
            open_plain(root / name)


def test_nothing_is_written_through_a_link(root: Path, secret: Path) -> None:
    (root / "inner" / "out.json").symlink_to(secret)
    (root / "way").symlink_to(secret.parent)
    opened = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        write_untrusted(opened, ("inner", "out.json"), b"ours")
        with pytest.raises(OSError, match="directory"):
            write_untrusted(opened, ("way", "file.txt"), b"ours")
    finally:
        os.close(opened)
    assert secret.read_text() == "secret"
    assert (root / "inner" / "out.json").read_bytes() == b"ours"  # the link was replaced
    assert not (root / "inner" / "out.json").is_symlink()
