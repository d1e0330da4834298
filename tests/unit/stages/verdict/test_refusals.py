"""A judge that fails names the cause, and blames nobody who is not at fault."""

from pathlib import Path

import pytest

from llm4llm.errors import BadArguments, BadCandidate, BadTaskFolder, JudgeTimeout, StageError
from llm4llm.sandbox import Failed
from llm4llm.stages.verdict.judging import _refusal


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bad_task", BadTaskFolder),
        ("task_not_reproducible", BadTaskFolder),
        ("bad_candidate", BadCandidate),
        ("bad_options", BadArguments),
        ("timeout", JudgeTimeout),
        ("died", StageError),
    ],
)
def test_each_failure_of_the_judge_has_its_own_error(kind: str, expected: type) -> None:
    failed = Failed(kind=kind, reason="why", exit_code=None, stderr_tail="a library's warning\n")
    assert type(_refusal(failed, Path("task"), Path("candidate.py"))) is expected


def test_too_little_time_is_told_with_its_fix_and_without_what_a_library_said() -> None:
    failed = Failed(kind="timeout", reason="judge took longer than 20 s", exit_code=None, stderr_tail="a library's warning\n")
    text = str(_refusal(failed, Path("task"), Path("candidate.py")))
    assert "20 s" in text
    assert "--budget" in text
    assert "warning" not in text
