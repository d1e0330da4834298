"""The judge reads plain files of its own folders alone."""

import json
import os
import time
from pathlib import Path

import pytest

from llm4llm.harness import judge
from llm4llm.harness.roomfiles import Folder


def test_the_end_of_a_plain_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0123456789")
    folder = Folder.at(tmp_path)
    assert (folder.end_of("a", 4), folder.end_of("a", 100)) == (b"6789", b"0123456789")


@pytest.mark.parametrize("kind", ["absent", "link", "pipe", "folder", "moved"])
def test_anything_else_is_as_good_as_absent(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "compiled-90.json").write_text("{}")
    room = tmp_path / "room"
    room.mkdir()
    folder, place = Folder.at(room), room / "compiled-90.json"
    if kind == "link":
        place.symlink_to(tmp_path / "elsewhere" / place.name)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "moved":
        room.rename(tmp_path / "old")
        room.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        folder.end_of(place.name, 100)
    monkeypatch.setattr(judge, "_COMPILE_TIMEOUT_S", 0.2)
    began = time.monotonic()
    assert "no answer" in judge._awaited(folder, place.name)["reason"]
    assert time.monotonic() - began < 5


def test_an_answer_that_is_no_object_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_COMPILE_TIMEOUT_S", 0.1)
    for text in ("[", "7", "[" * 100_000):
        (tmp_path / "a").write_text(text)
        assert "no answer" in judge._awaited(Folder.at(tmp_path), "a")["reason"]
    (tmp_path / "a").write_text(json.dumps({"ok": 1}))
    assert judge._awaited(Folder.at(tmp_path), "a") == {"ok": 1}
