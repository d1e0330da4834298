"""Log lines on stderr: plain for people, JSON for programs; what is given as `extra` stands in both.

Paths, names and errors come from strangers: nothing in them may steer a terminal or look like a line of its own.
"""

import json
import logging
import sys
from datetime import UTC, datetime

from llm4llm.kit.words import printable

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def set_up_logs(as_json: bool, level: str) -> None:
    """Send everything from this process's loggers of a level and above to stderr, one line per record."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonLines() if as_json else PlainLines())
    logging.basicConfig(handlers=[out], level=level.upper(), force=True)


class JsonLines(logging.Formatter):
    """time, level, logger, message, the record's own fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts |= {name: value for name, value in _extra(record).items() if name not in facts}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str)


class PlainLines(logging.Formatter):
    """The same for people; fields follow the message, a traceback is indented."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _extra(record).items())
        text = printable(f"{_time(record)} {record.levelname.lower()} {' '.join(record.getMessage().split())}{fields}")
        trace = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n".join([text, *(f"    {printable(line)}" for line in trace)])


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD and value is not None}
