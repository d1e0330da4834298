"""Lines for people: results on stdout, everything else on stderr, one line per fact."""

import os
import sys

from rich.console import Console
from rich.text import Text

from llm4llm.errors import Llm4llmError, UserError
from llm4llm.kit import printable

NAME = "llm4llm"
SELFTEST = "judge selftest"
_WIDE = 140  # columns of a table that nobody's terminal limits

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, already told on stderr."""


def result(text: str) -> None:
    """One line on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def line(text: str) -> None:
    """One line on stdout for people; what a server or a script said in it steers no terminal."""
    result(printable(text))


def note(text: str) -> None:
    """One line on stderr, with our name in front: the script's own lines may stand beside it."""
    sys.stderr.write(f"{NAME}: {printable(' '.join(text.split()))}\n")
    sys.stderr.flush()


def error(fault: Llm4llmError) -> int:
    """Say what happened and what to do; the exit code for it."""
    note(str(fault))
    return EXIT_UNUSABLE if isinstance(fault, UserError) else EXIT_FAILED


def tables() -> Console:
    """A console on stdout that cuts nothing off when it is no terminal."""
    return Console(soft_wrap=False) if sys.stdout.isatty() else Console(width=_WIDE, no_color=True)


def cells(*values: object) -> list[Text]:
    """Cells of a table, as they are: brackets in an error's text or in a name are no markup, and steer no terminal."""
    return [Text(printable(str(value))) for value in values]


def is_live() -> bool:
    """True if somebody watches stderr on a terminal that can redraw lines."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
