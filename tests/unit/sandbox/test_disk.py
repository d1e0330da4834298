"""What is counted of a folder whose owner would rather have nothing counted."""

import os
from pathlib import Path

import pytest

from llm4llm.sandbox.disk import MOST_LEVELS, Unmeasurable, used_bytes

ENOUGH = 1 << 40


def dug(folder: Path, levels: int, name: str) -> int:
    """A file descriptor of the deepest folder."""
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd


def test_content_and_names_are_counted(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(b"x" * 100_000)
    for number in range(50):
        (tmp_path / f"empty-{number}").touch()
        (tmp_path / f"folder-{number}").mkdir()
    assert 100_000 + 100 * 4096 <= used_bytes([tmp_path], ENOUGH) < 200_000 + 100 * 4096
    assert used_bytes([tmp_path, tmp_path], ENOUGH) == 2 * used_bytes([tmp_path], ENOUGH)
    assert used_bytes([tmp_path / "gone"], ENOUGH) == 0


def test_paths_that_are_too_long_to_be_opened_are_counted(tmp_path: Path) -> None:
    fd = dug(tmp_path, MOST_LEVELS - 1, "d" * 200)
    file = os.open("deep", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(file, b"x" * 1_000_000)
    os.close(file)
    os.close(fd)
    before = os.listdir("/proc/self/fd")
    assert used_bytes([tmp_path], ENOUGH) > 1_000_000
    assert os.listdir("/proc/self/fd") == before


def test_too_many_levels_are_a_reason_of_their_own(tmp_path: Path) -> None:
    os.close(dug(tmp_path, MOST_LEVELS, "d"))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(Unmeasurable, match="100 levels"):
        used_bytes([tmp_path], ENOUGH)
    assert os.listdir("/proc/self/fd") == before


def test_links_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "large").write_bytes(b"x" * 1_000_000)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "own" / "loop").symlink_to(tmp_path)
    assert used_bytes([tmp_path / "own"], ENOUGH) == 2 * 4096
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unmeasurable, match="can't be read"):
        used_bytes([tmp_path / "link"], ENOUGH)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_can_not_be_read_is_a_reason_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0)
    with pytest.raises(Unmeasurable, match="can't be read"):
        used_bytes([tmp_path], ENOUGH)


def test_no_more_is_looked_at_than_is_needed(tmp_path: Path) -> None:
    os.close(dug(tmp_path, MOST_LEVELS, "d"))
    assert used_bytes([tmp_path], 10_000) > 10_000
