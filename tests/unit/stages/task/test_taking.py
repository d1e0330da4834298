"""A task is what was moved out of the script's reach; what the live host says of its place counts nothing."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm4llm.errors import StageError
from llm4llm.kit import FrozenClock
from llm4llm.schema.capture import Capture
from llm4llm.schema.job import Job
from llm4llm.schema.profile import Hotspot, ProfileReport
from llm4llm.schema.selection import Selection
from llm4llm.stages.task.run import Wanted, run
from llm4llm.stages.tools import Ok, Tools

JOB = cast(Job, SimpleNamespace(id="job_1"))
ENVIRONMENT = {"python": "3.11", "platform": "linux", "cpu": "c", "cpu_threads": 1, "torch": "2", "target": "cpu"}


class Desk:
    """A live host that writes what `write` does and answers with these ids, in a job's folder that is its own."""

    def __init__(self, root: Path, ids: dict[str, str], write: Any) -> None:
        self.folder, self.own, self.ids, self.write = root / "job_1", root / "job_1.own", ids, write
        unused: Any = None
        self.tools = Tools(
            host=self, judge=unused, confirm=unused, clock=FrozenClock(), progress=lambda event: None, blobs=unused,
            scratch=self.folder, private=self.own, deadline=float("inf"), cancelled=lambda: False,
        )  # fmt: skip

    def request(self, op: str, payload: dict[str, Any], timeout_s: float, on_event: object = None) -> Ok:
        self.write(Path(payload["out"]))
        names = {"module_class": "m.Slow", "module_path": "slow", "root": "r0", "phase": "forward", "share": 0.5, "family": "f"}
        facts = {**names, "calls": 1, "device": "cpu", "dtypes": ["float32"], "folder": str(self.folder.parent / "elsewhere")}
        return Ok({"tasks": [{**facts, "hotspot": spot, "id": self.ids[spot]} for spot in payload["hotspots"]]})


def chosen(desk: Desk) -> Selection:
    capture = Capture.model_validate(
        {"end": {"kind": "returned", "exit_code": 0}, "environment": ENVIRONMENT, "roots": [], "drivers": [], "wall_ms": 1.0}
    )
    times = {"calls": 4, "host_ms": 1.0, "self_host_ms": 1.0, "share": 0.5, "self_share": 0.5, "bound": "unknown", "ceiling": 2.0}
    names = {"root": "r0", "module_class": "m.Slow", "phase": "forward", "family": "f", "paths": ("slow",)}
    spots = tuple(Hotspot.model_validate({"id": spot, **names, **times}) for spot in desk.ids)
    report = ProfileReport.model_validate(
        {"end_to_end": {"samples_ms": [1.0], "method": "m"}, "hotspots": spots, "phases": [], "method": "m", "coverage": 1.0}
    )
    return run(JOB, Wanted(capture, report, (), every_hotspot=True), desk.tools)


def honest(out: Path) -> None:
    (out / "t_1").mkdir()
    (out / "t_1" / "task.json").write_text("{}")


def test_a_task_lies_where_no_script_can_write(tmp_path: Path) -> None:
    for _ in range(2):  # the second time as after a kill, when what was taken before still lies there
        desk = Desk(tmp_path, {"h_1": "t_1"}, honest)
        (task,) = chosen(desk).tasks
        assert task.folder == str(desk.own / "tasks" / "t_1")
        assert (Path(task.folder) / "task.json").read_text() == "{}"
        assert list((desk.folder / "tasks").iterdir()) == []


def test_what_lay_in_the_place_of_tasks_is_not_written_through(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"h_1": "t_1"}, honest)
    (tmp_path / "elsewhere").mkdir()
    desk.folder.mkdir()
    (desk.folder / "tasks").symlink_to(tmp_path / "elsewhere")
    assert len(chosen(desk).tasks) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def planted(kind: str, out: Path) -> None:
    elsewhere = out.parent.parent / "elsewhere"
    honest(out)
    if kind == "link":
        (out / "t_1" / "calls.pt").symlink_to(elsewhere / "file")
    elif kind == "pipe":
        os.mkfifo(out / "t_1" / "calls.pt")
    elif kind == "name":
        os.link(out / "t_1" / "task.json", out / "kept")
    elif kind == "absent":
        (out / "t_1").rename(out / "t_2")
    elif kind == "way":
        out.rename(out.with_name("moved"))
        out.symlink_to(elsewhere)
    elif kind == "whole":
        (out / "t_1").rename(out / "t_2")
        (out / "t_1").symlink_to(elsewhere)


@pytest.mark.parametrize("kind", ["link", "pipe", "name", "absent", "way", "whole"])
def test_what_is_not_a_plain_folder_is_a_reason(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere" / "t_1").mkdir(parents=True)
    (tmp_path / "elsewhere" / "file").write_text("secret")
    desk = Desk(tmp_path, {"h_1": "t_1"}, lambda out: planted(kind, out))
    selection = chosen(desk)
    assert selection.tasks == ()
    assert selection.skipped["h_1"].code == "not_carried"
    assert not os.path.lexists(desk.own / "tasks" / "t_1")
    assert (tmp_path / "elsewhere" / "t_1").is_dir()


@pytest.mark.parametrize("name", ["../../elsewhere", "t_1/../t_1", "", ".", "..", "t_" + "1" * 300, "t_1\n", "t_\u0661"])
def test_an_id_that_is_none_is_no_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(StageError, match="no id"):
        chosen(Desk(tmp_path, {"h_1": name}, honest))
    assert (tmp_path / "elsewhere").is_dir()


def test_no_task_replaces_another_of_the_same_answer(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="two tasks"):
        chosen(Desk(tmp_path, {"h_1": "t_1", "h_2": "t_1"}, honest))
