"""Log lines for people and for programs."""

import json
import logging
import sys

import pytest

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
    assert rest[-1] == "    ValueError: odd"


@pytest.mark.parametrize("letter", ["\n", "\r", "\x1b", "\x9b", "\x00", "\x7f", "\u2028", "\u202e", "\x85", "\udc80"])
@pytest.mark.parametrize("formatter", [JsonLines(), PlainLines()])
def test_what_strangers_send_is_no_line_and_steers_no_terminal(formatter: logging.Formatter, letter: str) -> None:
    odd = f"a{letter}2026-01-01T00:00:00 info forged"
    try:
        raise ValueError(odd)
    except ValueError:
        made = logging.getLogger("a").makeRecord("a", logging.INFO, "f.py", 1, "GET %s", (odd,), sys.exc_info(), extra={"job": odd})
    lines = formatter.format(made).split("\n")
    assert all(line.isprintable() for line in lines)
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert sum("GET" in line for line in lines) == 1
