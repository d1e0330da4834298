import stat
from pathlib import Path

import pytest

from llm4llm.kit import copy_atomic, install_folder, tail, write_atomic


def test_write_replaces_whole_files_and_makes_folders(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b.txt"
    write_atomic(file, "one")
    write_atomic(file, b"two", mode=0o600)
    assert file.read_text() == "two"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kept.txt"
    write_atomic(file, "old")

    def broken(fd: int) -> None:
        raise OSError("disk is gone")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="disk is gone"):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_copy(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"\0\1")
    copy_atomic(tmp_path / "source", tmp_path / "deep" / "copy")
    assert (tmp_path / "deep" / "copy").read_bytes() == b"\0\1"


def test_the_first_installed_folder_stays(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "who").write_text(name)
        install_folder(tmp_path / name, tmp_path / "place")
    assert (tmp_path / "place" / "who").read_text() == "first"
    assert not (tmp_path / "second").exists()


def test_a_folder_that_can_not_be_installed_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "draft").mkdir()
    with pytest.raises(OSError):
        install_folder(tmp_path / "draft", tmp_path / "missing" / "place")


def test_tail_keeps_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert tail(file) == ""
    file.write_text("first line\nsecond line\nthird line\n")
    assert tail(file) == file.read_text()
    assert tail(file, max_bytes=20) == "third line\n"
