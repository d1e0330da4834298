"""Log lines for people and for programs."""

import json
import logging
import sys

from llm4llm.kit.logs import JsonLines, PlainLines


def record(**extra: object) -> logging.LogRecord:
    log = logging.getLogger("a.b")
    try:
        raise ValueError("odd")
    except ValueError:
        return log.makeRecord("a.b", logging.ERROR, "f.py", 1, "took %s\nin all", (3,), sys.exc_info(), extra=extra)


def test_json_lines_hold_the_extra_fields() -> None:
    text = JsonLines().format(record(job="job_1", stage=None, message_text="x", path=len))
    facts = json.loads(text)
    assert "\n" not in text
    assert (facts["level"], facts["logger"], facts["message"], facts["job"]) == ("error", "a.b", "took 3\nin all", "job_1")
    assert "stage" not in facts
    assert "ValueError: odd" in facts["traceback"]


def test_plain_lines_hold_them_too() -> None:
    first, *rest = PlainLines().format(record(job="job_1")).splitlines()
    assert first.endswith("error took 3 in all job=job_1")
    assert rest[-1] == "ValueError: odd"
