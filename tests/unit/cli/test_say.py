"""Lines for people hold what servers and scripts said, and steer no terminal."""

import pytest

from llm4llm.cli import say
from llm4llm.cli.live import watching
from llm4llm.schema.event import Event

ODD = "a\x1b[2J\x9b\u202eb"


def test_no_line_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say.note(ODD)
    say.line(ODD)
    with watching("s.py", 60.0) as progress:
        progress(Event(job="job_1", kind="note", text=ODD))
    said = capsys.readouterr()
    lines = [*said.out.splitlines(), *said.err.splitlines(), str(*say.cells(ODD))]
    assert len(lines) == 4
    assert all(line.isprintable() and "a\\x1b[2J" in line for line in lines)


def test_letters_of_every_language_stay() -> None:
    assert str(*say.cells("é 漢字 🙂 50 %")) == "é 漢字 🙂 50 %"
