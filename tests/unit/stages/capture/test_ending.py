"""What the way in which a script ended means for its job."""

from typing import Any

import pytest

from llm4llm.schema.capture import Capture
from llm4llm.stages.capture.ending import ending

ENVIRONMENT = {"python": "3.11", "platform": "linux", "cpu": "c", "cpu_threads": 1, "torch": "2", "target": "cpu"}
ROOT = {"id": "r0", "module_class": "m.Net", "fingerprint": "f", "parameters": 1, "parameter_bytes": 4, "devices": ["cpu"],
        "dtypes": ["float32"], "training": False}  # fmt: skip
DRIVER = {"id": "d0", "root": "r0", "method": "forward", "signature": "s", "count": 1, "wall_ms": [1.0]}


def capture(kind: str, code: int | None, error: str | None = None, *, model: bool = True) -> Capture:
    facts: dict[str, Any] = {"roots": [ROOT], "drivers": [DRIVER]} if model else {"roots": [], "drivers": []}
    end = {"kind": kind, "exit_code": code, "error": error}
    return Capture.model_validate({"end": end, "environment": ENVIRONMENT, "wall_ms": 61_000.0, **facts})


@pytest.mark.parametrize(("kind", "code"), [("returned", 0), ("exit", 0), ("exit", None)])
def test_a_good_end_lets_the_job_go_on(kind: str, code: int | None) -> None:
    assert ending(capture(kind, code)) is None


def test_no_model_is_an_orderly_result() -> None:
    found = ending(capture("returned", 0, model=False))
    assert found is not None
    assert (found.status, found.reason.code) == ("succeeded", "no_model")


@pytest.mark.parametrize(
    ("facts", "code", "parts"),
    [
        (("raised", 1, "ValueError: batch 3"), "script_failed", ["exit code 1", "ValueError: batch 3", "was profiled"]),
        (("exit", 3, None), "script_failed", ["exit code 3"]),
        (("exit", 2, None), "script_failed", ["exit code 2"]),
        (("exit", 2, "usage: s.py: error: --text is required"), "script_wants_arguments", ["pass them after --", "--text"]),
        (("time_up", None, None), "time_budget", ["time budget used up", "61 s", "--budget"]),
        (("died", -11, "segmentation fault"), "script_died", ["signal 11", "segmentation fault"]),
    ],
)
def test_a_bad_end_says_what_happened_and_what_to_do(facts: tuple[str, int | None, str | None], code: str, parts: list[str]) -> None:
    found = ending(capture(*facts))
    assert found is not None
    assert (found.status, found.reason.code) == ("failed", code)
    assert all(part in found.reason.text for part in parts), found.reason.text
    assert "\n" not in found.reason.text
