"""A profile is the host's answer, or a reason why there is none."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm4llm.errors import StageError
from llm4llm.schema.job import Job
from llm4llm.stages.profile.run import run
from llm4llm.stages.tools import Failed, Ok, Tools

JOB = cast(Job, SimpleNamespace(id="job_1"))
REPORT = {"end_to_end": {"samples_ms": [2.0], "method": "m"}, "hotspots": [], "phases": [], "method": "m", "coverage": 1.0}


def profiled(answer: Ok | Failed) -> Any:
    asked: list[tuple[str, dict[str, Any], float]] = []

    def request(op: str, payload: dict[str, Any], timeout_s: float, on_event: Any = None) -> Ok | Failed:
        asked.append((op, payload, timeout_s))
        return answer

    tools = SimpleNamespace(host=SimpleNamespace(request=request), seconds_left=lambda: 40.0, progress=lambda event: None)
    report = run(JOB, cast(Tools, tools))
    return report, asked


def test_the_host_gets_the_stage_s_time_as_its_limit() -> None:
    report, asked = profiled(Ok(REPORT))
    assert report.end_to_end.median_ms == 2.0
    assert asked[0][0] == "profile"
    assert asked[0][1]["time_limit_s"] == 40.0
    assert asked[0][2] > 40.0


@pytest.mark.parametrize("answer", [Failed("timeout", "it hung"), Ok({**REPORT, "surprise": 1})])
def test_no_usable_answer_is_the_stage_s_failure(answer: Ok | Failed) -> None:
    with pytest.raises(StageError):
        profiled(answer)
