import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from llm4llm.sandbox.staging import stage_harness


def test_the_staged_copy_holds_what_children_need_and_no_more(tmp_path: Path) -> None:
    place = stage_harness(tmp_path)
    assert {folder.name for folder in (place / "llm4llm").iterdir() if folder.is_dir()} == {"runtime", "harness"}
    assert (place / "llm4llm" / "harness" / "channel.py").is_file()
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(place)!r}); import llm4llm.harness.channel as c; print(c.__file__)",
    ]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith(str(place))


def test_many_at_once_make_one_copy(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        places = set(pool.map(lambda _: stage_harness(tmp_path), range(16)))
    assert len(places) == 1
    assert [path for path in (tmp_path / "harness").iterdir() if path.is_dir()] == [places.pop()]


def test_a_changed_copy_is_replaced(tmp_path: Path) -> None:
    place = stage_harness(tmp_path)
    file = place / "llm4llm" / "harness" / "channel.py"
    original = file.read_bytes()
    file.write_text("raise SystemExit('changed')")
    assert stage_harness(tmp_path) == place
    assert file.read_bytes() == original
