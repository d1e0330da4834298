"""Folders that somebody else fills: emptied, moved and looked through whatever lies in them."""

import os
import threading
from pathlib import Path

import pytest

from llm4llm.kit import NotPlain, clear_untrusted, fresh_untrusted, remove_untrusted, take_untrusted

LIMITS = (100, 1 << 20)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def deep(root: Path, levels: int, name: str = "d") -> None:
    """A folder far below what a path can name."""
    folder = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)


def test_depth_and_width_and_odd_kinds_are_removed(root: Path, secret: Path) -> None:
    deep(root, 3000)
    deep(root, 20, "n" * 255)
    (root / "link").symlink_to(secret)
    (root / "way").symlink_to(secret.parent)
    os.mkfifo(root / "pipe")
    (root / "wide").mkdir()
    for number in range(2500):
        (root / "wide" / str(number)).mkdir()
    opened = len(os.listdir("/proc/self/fd"))
    assert clear_untrusted(root, {"pipe"})
    assert os.listdir(root) == ["pipe"]
    assert remove_untrusted(root)
    assert not root.exists()
    assert secret.read_text() == "secret"
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_link_is_removed_and_not_what_it_leads_to(root: Path, secret: Path) -> None:
    (root / "way").symlink_to(secret.parent)
    assert remove_untrusted(root / "way")
    assert remove_untrusted(root / "absent")
    assert remove_untrusted(root / "absent" / "too")
    assert secret.read_text() == "secret"


def _removed_by_its_owner(root: Path) -> bool:
    os.chdir(root.parent)
    if os.geteuid() == 0:
        os.setuid(65534)
    for mode in (0o000, 0o400, 0o500, 0o300):
        folder = Path("root", f"{mode:o}")
        (folder / "inner" / "more").mkdir(parents=True)
        (folder / "inner" / "file").touch()
        (folder / "inner").chmod(mode)
        folder.chmod(mode)
    return clear_untrusted(Path("root")) and not os.listdir("root")


def test_folders_without_rights_are_removed_by_their_owner(root: Path) -> None:
    """Root may do anything, so it becomes somebody else first."""
    root.parent.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(root, 65534, -1)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if _removed_by_its_owner(root) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_outside_goes_while_folders_are_swapped_for_links(root: Path, secret: Path) -> None:
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            try:
                os.mkdir(root / "a")
                os.mkdir(root / "a" / "b")
                os.symlink(secret.parent, root / "l")
                os.rename(root / "a" / "b", root / "c")
                os.rename(root / "l", root / "a" / "b")
            except OSError:
                continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(100):
            clear_untrusted(root, patience_s=0.02)
    finally:
        stop.set()
        thread.join()
    assert secret.read_text() == "secret"
    assert clear_untrusted(root)


def test_somebody_who_goes_on_adding_files_is_not_waited_for_for_ever(root: Path) -> None:
    stop = threading.Event()

    def add() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            (root / str(number)).touch()

    thread = threading.Thread(target=add)
    thread.start()
    try:
        clear_untrusted(root, patience_s=0.2)
    finally:
        stop.set()
        thread.join()
    assert clear_untrusted(root)


def test_a_fresh_folder_is_one_whatever_lay_there(root: Path, secret: Path) -> None:
    (root / "way").symlink_to(secret.parent)
    (root / "file").touch()
    deep(root, 1500)
    for name in ("way", "file", "d", "new"):
        place = fresh_untrusted(root, name)
        assert not place.is_symlink()
        assert list(place.iterdir()) == []
    assert secret.read_text() == "secret"


def test_a_plain_folder_is_taken_out_of_reach(root: Path, tmp_path: Path) -> None:
    (root / "tasks" / "t_1" / "definitions").mkdir(parents=True)
    (root / "tasks" / "t_1" / "definitions" / "m.py").write_text("x")
    place = tmp_path / "own" / "tasks" / "t_1"
    (place / "left").mkdir(parents=True)
    take_untrusted(root, ("tasks", "t_1"), place, *LIMITS)
    assert [str(path.relative_to(place)) for path in place.rglob("*")] == ["definitions", "definitions/m.py"]
    assert list((root / "tasks").iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "pipe", "other name", "large", "many", "deep", "is a link", "is a file", "way"])
def test_what_is_not_plain_is_not_taken(root: Path, secret: Path, tmp_path: Path, kind: str) -> None:
    task, place = root / "tasks" / "t_1", tmp_path / "own" / "t_1"
    task.mkdir(parents=True)
    (task / "task.json").write_text("{}")
    if kind == "link":
        (task / "calls.pt").symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(task / "calls.pt")
    elif kind == "other name":
        os.link(task / "task.json", root / "kept")
    elif kind == "large":
        os.truncate(task / "task.json", 2 << 20)
    elif kind == "many":
        for number in range(200):
            (task / str(number)).touch()
    elif kind == "deep":
        deep(task, 1500)
    elif kind == "way":
        (root / "tasks").rename(root / "moved")
        (root / "tasks").symlink_to(root / "moved")
    else:
        remove_untrusted(task)
        task.symlink_to(secret.parent) if kind == "is a link" else task.touch()
    with pytest.raises((NotPlain, OSError)):
        take_untrusted(root, ("tasks", "t_1"), place, *LIMITS)
    assert not os.path.lexists(place)
    assert secret.read_text() == "secret"
