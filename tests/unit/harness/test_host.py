"""The order of requests, and the moment at which torch is noticed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm4llm.harness import host
from llm4llm.harness.host import Host, TorchFinder
from llm4llm.harness.script import ScriptRun
from llm4llm.harness.workload import Workload


class Line:
    """A channel that remembers its answers."""

    def __init__(self, *requests: tuple[str, dict[str, Any]]) -> None:
        self._requests = requests
        self.answers: list[Any] = []

    def requests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self._requests

    def event(self, facts: dict[str, Any]) -> None:
        self.answers.append(("event", facts))

    def ok(self, result: dict[str, Any]) -> None:
        self.answers.append(("ok", result))

    def error(self, kind: str, reason: str) -> None:
        self.answers.append((kind, reason))


@pytest.fixture
def run(tmp_path: Path) -> ScriptRun:
    names = {"script": "s.py", "working_directory": ".", "stdout": "out", "stderr": "err", "replay_log": "log"}
    return ScriptRun.from_json({name: str(tmp_path / file) for name, file in names.items()} | {"scratch": "ignored"})


def served(run: ScriptRun, *requests: tuple[str, dict[str, Any]], workload: Workload | None = None) -> list[Any]:
    line: Any = Line(*requests)
    live = Host(run, line)
    if workload is not None:
        live._captured, live._workload = True, workload
    host.serve(live, line)
    return line.answers  # type: ignore[no-any-return]


def test_requests_before_the_capture_are_refused(run: ScriptRun) -> None:
    answers = served(run, ("profile", {}), ("dance", {}))
    assert [kind for kind, _ in answers] == ["disorder", "protocol"]
    assert "capture comes first" in answers[0][1]


def test_a_script_without_a_model_gives_a_reason(run: ScriptRun) -> None:
    answers = served(run, ("extract", {"hotspots": []}), workload=Workload())
    assert answers == [("no_model", "extract: NoModel: the script called no model")]


def test_a_second_capture_is_refused(run: ScriptRun) -> None:
    assert served(run, ("capture", {}), workload=Workload())[0][0] == "disorder"


def test_out_of_memory_has_its_own_kind(run: ScriptRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: Any) -> dict[str, Any]:
        raise MemoryError("too much")

    monkeypatch.setitem(host.OPERATIONS, "profile", hungry)
    assert served(run, ("profile", {}))[0][0] == "oom"


def test_environment_is_told_at_any_time(run: ScriptRun) -> None:
    from llm4llm.schema.environment import Environment

    (kind, facts) = served(run, ("environment", {}))[0]
    assert kind == "ok"
    assert Environment(**facts, target="cpu").cpu_threads >= 1


def test_the_import_is_noticed_once_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(host, "_TORCH", "heavy")
    seen: list[int] = []
    finder = TorchFinder(lambda: seen.append(sys.modules["heavy"].value))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import heavy

    assert seen == [1]
    assert finder not in sys.meta_path
    assert "exec_module" not in vars(heavy.__spec__.loader)
    del sys.modules["heavy"]


def test_a_missing_module_stays_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_TORCH", "no_such_module_at_all")
    finder = TorchFinder(lambda: None)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_at_all")
