from pathlib import Path

import pytest
import torch

from llm4llm.harness.bench import Options
from llm4llm.harness.gates import failure
from llm4llm.harness.judge import Judge, Refused, _imports_triton, candidate_text
from llm4llm.harness.subject import essential_line


def test_unknown_options_are_refused() -> None:
    assert Options.of({"capabilities": [90], "seed": 3}) == Options(capabilities=(90,), seed=3)
    with pytest.raises(ValueError, match="secnods"):
        Options.of({"secnods": 3})


def test_triton_is_seen_in_the_syntax() -> None:
    assert _imports_triton("import triton.language as tl")
    assert _imports_triton("def f():\n    from triton import jit")
    assert not _imports_triton('"""import triton"""\nimport torch')
    assert not _imports_triton("def (")


def test_unreadable_candidates_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe")
    for name in ("bad.py", "absent.py"):
        with pytest.raises(Refused) as caught:
            candidate_text(tmp_path / name)
        assert caught.value.kind == "bad_candidate"


def test_bad_tasks_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "candidate.py").write_text("def forward(module, state, x): return x")
    payload = {"task": str(tmp_path), "candidate": str(tmp_path / "candidate.py"), "options": {}}
    events: list[object] = []
    with pytest.raises(Refused) as caught:
        Judge(events.append).judge(payload)
    assert caught.value.kind == "bad_task"
    with pytest.raises(Refused) as caught:
        Judge(events.append).judge({**payload, "options": {"speed": 1}})
    assert caught.value.kind == "bad_options"
    assert events == []
    assert torch.get_num_threads() >= 1


def test_the_line_that_matters() -> None:
    assert essential_line("a\nValueError: no\n  note\n") == "ValueError: no"
    assert essential_line("Segmentation fault (core dumped)\n") == "Segmentation fault (core dumped)"
    assert essential_line("") == ""


def test_failures_have_an_outcome_and_a_place() -> None:
    error = {"kind": "runtime", "type": "ValueError", "text": ["too many", "detail"], "line": "line 3: raise"}
    stop = failure(error, "captured call 1")
    assert (stop.outcome, stop.kind) == ("failed", "runtime")
    assert stop.reason == "ValueError in captured call 1, line 3: raise: too many"
    assert stop.details == ("detail",)
    assert failure({**error, "kind": "exit"}, "x").outcome == "rejected"
    assert failure({**error, "kind": "resources"}, "x").outcome == "rejected"
