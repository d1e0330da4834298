import os
import sys
from pathlib import Path

import pytest

from llm4llm.cli.request import Options, interpreter, make_request
from llm4llm.errors import BadArguments, BadInterpreter


def test_a_request_holds_absolute_places_and_only_permitted_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MADE_UP_TOKEN", "secret")
    monkeypatch.setenv("MODE", "tiny")
    options = Options(Path("a.py"), ("--x", "1"), environment=("MODE", "N=3"), budget="2m", min_gain=1.1)
    request = make_request(options, tmp_path)
    assert request.script == str(tmp_path / "a.py")
    assert request.working_directory == str(tmp_path)
    assert request.arguments == ("--x", "1")
    assert request.python == sys.executable
    assert (request.budget.seconds, request.min_gain, request.stdin) == (120, 1.1, None)
    assert (request.environment["MODE"], request.environment["N"]) == ("tiny", "3")
    assert "MADE_UP_TOKEN" not in request.environment
    assert "LLM4LLM_HOME" not in request.environment


@pytest.mark.parametrize("gain", [0.5, -1.0, float("nan"), float("inf")])
def test_a_gain_that_is_none_is_refused(tmp_path: Path, gain: float) -> None:
    with pytest.raises(BadArguments, match="min-gain"):
        make_request(Options(Path("a.py"), min_gain=gain), tmp_path)


def test_interpreters_are_found_by_name_and_keep_their_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "python-of-mine"
    link.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert interpreter("python-of-mine") == str(link)
    assert interpreter(str(link)) == str(link)
    with pytest.raises(BadInterpreter):
        interpreter(str(tmp_path / "none"))


def test_standard_input_is_a_file_or_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "input.txt"
    file.write_text("hello\n")
    monkeypatch.chdir(tmp_path)
    assert make_request(Options(Path("a.py"), stdin="input.txt"), tmp_path).stdin == str(file)
    with file.open() as given:
        monkeypatch.setattr("sys.stdin", given)
        kept = make_request(Options(Path("a.py"), stdin="-"), tmp_path / "home").stdin
    assert kept is not None
    assert Path(kept).read_text() == "hello\n"
    with pytest.raises(BadArguments, match="--stdin"):
        make_request(Options(Path("a.py"), stdin="missing.txt"), tmp_path)
