"""The report files: complete, escaped, self-contained."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from llm4llm.web.report import render_report, write_report

NASTY = '<img src=x onerror="alert(1)">'


def report(**changes: Any) -> dict[str, Any]:
    hotspot = {
        "module_class": "pkg.Mixer",
        "phase": "prefill",
        "share": 0.8,
        "ceiling": 5.0,
        "bound": "compute",
        "status": "accepted",
        "reason": "kept",
    }
    verdict = {"outcome": "passed", "kind": "passed", "reason": "every gate passed", "speedup": 4.0, "ci95": [3.8, 4.1]}
    whole: dict[str, Any] = {
        "job": {
            "id": "job_1",
            "script_name": "infer.py",
            "status": "succeeded",
            "created_at": "2026-01-01T00:00:00Z",
            "reason": None,
            "script_exit_code": 0,
        },
        "environment": {"torch": "2.13.0", "cpu": "x86-64", "gpu": None},
        "hotspots": [hotspot],
        "candidates": [{"id": "cand_1", "author": "seeds:scan", "task": "t_1", "verdict": verdict}],
        "accepted": [{"module_class": "pkg.Mixer", "phase": "prefill", "sites": 6, "hits": 6, "fallbacks": 0}],
        "end_to_end": {"baseline_ms": [20.0, 21.0], "patched_ms": [10.0, 10.5], "speedup": 2.0, "ci95": [1.9, 2.1], "decision": "accepted"},
        "spend": {"seconds": {"capture": 12.5}, "total_seconds": 12.5, "budget_seconds": 600.0},
    }
    return whole | changes


def test_files_hold_what_was_measured(tmp_path: Path) -> None:
    write_report(report(), tmp_path)
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report()))
    page = (tmp_path / "report.html").read_text()
    assert "2.00× faster end to end" in page
    assert "1.90× to 2.10×" in page
    assert page.count("Plotly.newPlot(") >= 2


def test_page_needs_no_other_file() -> None:
    page = render_report(report())
    body = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"""(src|href)\s*=\s*["']""", body)


def test_a_job_without_models_has_a_page_as_well() -> None:
    job = report()["job"] | {
        "status": "failed",
        "script_exit_code": 3,
        "reason": {"code": "script_failed", "text": "the script ended with exit code 3"},
    }
    page = render_report(report(job=job, environment=None, hotspots=[], candidates=[], accepted=[], end_to_end=None))
    assert "No patch was accepted" in page
    assert "the script ended with exit code 3" in page
    assert "Plotly.newPlot(" not in page


@pytest.mark.parametrize("field", ["script_name", "reason"])
def test_text_of_the_job_is_escaped(field: str) -> None:
    value: Any = {"code": "x", "text": NASTY} if field == "reason" else NASTY
    assert NASTY not in render_report(report(job=report()["job"] | {field: value}))


@pytest.mark.parametrize("field", ["module_class", "reason"])
def test_text_of_a_hotspot_is_escaped_in_table_and_plot(field: str) -> None:
    spot = report()["hotspots"][0] | {field: NASTY}
    page = render_report(report(hotspots=[spot]))
    assert "<img src=x" not in page
    assert "</script><b>" not in render_report(report(hotspots=[spot | {field: "</script><b>"}]))
