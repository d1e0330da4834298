from pathlib import Path

import pytest

import llm4llm
from llm4llm.cli.main import run


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"llm4llm {llm4llm.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["optimize"],
        ["profile"],
        ["tasks"],
        ["judge"],
        ["run"],
        ["bundle", "inspect"],
        ["bundle", "verify"],
        ["doctor"],
        ["jobs"],
        ["status"],
        ["serve"],
        ["submit"],
        ["cancel"],
        ["logs"],
        ["download"],
        ["keys", "create"],
        ["keys", "list"],
        ["keys", "revoke"],
    ],
)
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    assert "Usage: llm4llm" in capsys.readouterr().out


def test_help_shows_where_the_script_arguments_go(capsys: pytest.CaptureFixture[str]) -> None:
    run(["optimize", "--help"])
    assert "[-- SCRIPT ARGS...]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "nonsense"),
        (["optimize", "a.py", "--flag"], "arguments of the script itself go after --"),
        (["optimize", "a.py", "b.py"], "arguments of the script itself go after --"),
        (["optimize"], "--resume"),
        (["optimize", "a.py", "--resume", "job_x"], "--resume"),
        (["tasks", "a.py"], "--out"),
        (["judge", "only-one"], "CANDIDATE"),
        (["optimize", "a.py", "--min-gain", "much"], "--min-gain"),
        (["optimize", "a.py", "--budget", "soon"], "10m"),
        (["optimize", "a.py", "--env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE"),
        (["optimize", "a.py", "--python", "no-such-python"], "no-such-python"),
        (["status", "job_unknown"], "llm4llm jobs"),
        (["optimize", "--resume", "job_unknown"], "llm4llm jobs"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("llm4llm: ")


def test_settings_that_can_not_be_used_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LLM4LLM_LOG_LEVEL", "loud")
    assert run(["jobs"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_home_that_can_not_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLM4LLM_HOME", str(tmp_path / "file" / "home"))
    assert run(["jobs"]) == 1
    assert "LLM4LLM_HOME" in capsys.readouterr().err


def test_without_jobs_the_list_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "llm4llm optimize" in shown.err
