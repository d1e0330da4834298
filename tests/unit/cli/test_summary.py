from pathlib import Path
from typing import Any

from llm4llm.cli.summary import summary


def report(**changes: Any) -> dict[str, Any]:
    spots = [
        {"module_class": f"Block{number}", "phase": "decode", "share": number / 100, "status": "skipped", "reason": "too\nsmall"}
        for number in range(12)
    ]
    done = {"module_class": "Mixer", "phase": "prefill", "share": 0.9, "status": "accepted", "reason": "faster"}
    patch = {"module_class": "Mixer", "phase": "prefill", "author": "seeds:scan", "sites": 24, "hits": 48, "fallbacks": 1}
    return {
        "job": {
            "status": "succeeded",
            "reason": {"code": "accepted", "text": "ok"},
            "request": {"script": "/s/run.py", "arguments": ["--word", "a b"]},
        },
        "hotspots": [*spots, done],
        "accepted": [patch],
        "end_to_end": {"decision": "accepted", "speedup": 2.5, "ci95": [2.25, 2.75]},
        "bundle": {"sha256": "0"},
        "notes": [],
        **changes,
    }


def test_an_accepted_job_tells_gain_patches_and_how_to_use_them() -> None:
    lines = list(summary(report(), Path("/out")))
    assert lines[0] == "accepted: 2.50x end to end, 95 % interval 2.25 to 2.75, confirmed in a fresh process"
    assert "  accepted  Mixer (prefill)  by seeds:scan: 24 sites, 48 hits, 1 fallback" in lines
    assert "  skipped   Block11 (decode, 11 %): too small" in lines
    assert "  and 4 smaller ones, see the report" in lines
    assert lines[-1] == "use it: llm4llm run --bundle /out/bundle.zip /s/run.py -- --word 'a b'"


def test_notes_are_told() -> None:
    note = {"code": "gain_beyond_profile", "text": "another pace"}
    assert "note: another pace" in list(summary(report(notes=[note]), Path("/out")))


def test_a_job_without_a_patch_says_why() -> None:
    nothing = {"decision": "nothing_accepted", "speedup": None, "ci95": None}
    job = {
        "status": "succeeded",
        "reason": {"code": "no_model", "text": "nothing to optimise: no model was called"},
        "request": {"script": "/s/run.py", "arguments": ["--word", "a b"]},
    }
    lines = list(summary(report(job=job, end_to_end=nothing, accepted=[], hotspots=[], bundle=None), Path("/out")))
    assert lines == ["nothing to optimise: no model was called", "report: /out/report.html"]


def test_a_failed_job_shows_what_ran_before() -> None:
    nothing = {"decision": "nothing_accepted", "speedup": None, "ci95": None}
    spot = {"module_class": "Block", "phase": "decode", "share": 0.5, "status": "skipped", "reason": "not tried, because " + 40 * "very "}
    job = {
        "status": "failed",
        "reason": {"code": "x", "text": "it failed"},
        "request": {"script": "/s/run.py", "arguments": ["--word", "a b"]},
    }
    lines = list(summary(report(job=job, end_to_end=nothing, accepted=[], hotspots=[spot], bundle=None), Path("/out")))
    assert len(lines) == 2
    assert lines[0].startswith("  skipped   Block (decode, 50 %): not tried")
    assert lines[0].endswith("very …")
