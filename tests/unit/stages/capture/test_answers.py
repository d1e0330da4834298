"""Answers of a host whose script may have written them."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_ending import DRIVER, ENVIRONMENT, ROOT

from llm4llm.errors import StageError
from llm4llm.schema.capture import Capture
from llm4llm.schema.job import Job
from llm4llm.stages.capture.run import run
from llm4llm.stages.tools import Ok, Tools

HONEST = {
    "end": {"kind": "returned", "exit_code": 0, "error": None},
    "roots": [ROOT],
    "drivers": [DRIVER],
    "wall_ms": 1.0,
    "notes": [],
    "partial": False,
}
PLACE = {name: value for name, value in ENVIRONMENT.items() if name != "target"}


def captured(tmp_path: Path, answer: dict[str, Any], place: dict[str, Any] = PLACE) -> Capture:
    def request(op: str, payload: dict[str, Any], timeout_s: float, on_event: Any = None) -> Ok:
        return Ok(answer if op == "capture" else place)

    host = SimpleNamespace(request=request)
    tools = SimpleNamespace(host=host, seconds_left=lambda: 40.0, progress=lambda event: None, scratch=tmp_path)
    job = SimpleNamespace(id="job_1", request=SimpleNamespace(target="auto"))
    return run(cast(Job, job), lambda name, gpu, capability: cast(Any, SimpleNamespace(name="cpu")), cast(Tools, tools))


def test_an_honest_answer_is_read(tmp_path: Path) -> None:
    found = captured(tmp_path, HONEST)
    assert (found.roots[0].id, found.drivers[0].method, found.environment.target) == ("r0", "forward", "cpu")


@pytest.mark.parametrize(
    "changes",
    [
        {"end": None},
        {"end": {"kind": "dancing", "exit_code": 0}},
        {"roots": [{}] * 100_000},
        {"roots": [ROOT] * 100_000},
        {"drivers": [DRIVER] * 100_000},
        {"drivers": [{**DRIVER, "wall_ms": [1.0] * 100_000}]},
        {"drivers": [{**DRIVER, "signature": "x" * 100_000}]},
        {"notes": [{"code": "x", "text": "y"}] * 100_000},
        {"notes": None},
        {"wall_ms": math.nan},
    ],
)
def test_what_has_no_end_or_no_sense_is_the_stage_s_failure(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(StageError):
        captured(tmp_path, {**HONEST, **changes})


@pytest.mark.parametrize("place", [{}, {**PLACE, "gpu": {}}, {**PLACE, "cpu_threads": "many"}])
def test_so_is_a_machine_that_is_none(tmp_path: Path, place: dict[str, Any]) -> None:
    with pytest.raises(StageError):
        captured(tmp_path, HONEST, place)
    assert len(captured(tmp_path, HONEST, {**PLACE, "cpu": "x" * 1_000_000}).environment.cpu) < 10_000
