import io

import pytest
from rich.console import Console

from llm4llm.cli.live import Watched, picture, watching
from llm4llm.schema.event import Event
from llm4llm.schema.job import StageName

EVENTS = [
    Event(job="job_1", kind="stage_started", stage=StageName.CAPTURE, text="capture started", facts={"budget_left_s": 600.0}),
    Event(job="job_1", kind="note", stage=StageName.CAPTURE, text="the model was\ncalled"),
    Event(job="job_1", kind="stage_finished", stage=StageName.CAPTURE, text="capture finished"),
    Event(job="job_1", kind="stage_started", stage=StageName.EPISODE, text="episode started"),
    Event(job="job_1", kind="trial", stage=StageName.EPISODE, text="seeds:a on Block: passed", facts={"outcome": "passed", "best": 3.5}),
    Event(
        job="job_1", kind="trial", stage=StageName.EPISODE, text="seeds:b on Block: incorrect", facts={"outcome": "incorrect", "best": 3.5}
    ),
    Event(job="job_1", kind="trial", stage=StageName.ACCEPTANCE, text="cand: keep", facts={"decision": "keep", "speedup": 1.8}),
    Event(job="job_1", kind="stage_finished", stage=StageName.ACCEPTANCE, text="acceptance failed: no time"),
]


def drawn(watched: Watched) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(picture(watched))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_shows_stages_trials_best_and_budget() -> None:
    watched = Watched("script.py", 600.0)
    assert "best so far none yet" in drawn(watched)
    for event in EVENTS[:6]:
        watched(event)
    text = drawn(watched)
    assert "script.py  job_1" in text
    assert "✓ capture" in text
    assert "· bundle" in text
    assert "trials 2, best so far 3.50x on its module" in text
    assert "10m00s of the budget left" in text or "9m5" in text
    assert "the model was called" in text
    for event in EVENTS[6:]:
        watched(event)
    text = drawn(watched)
    assert "best so far 1.80x end to end" in text
    assert "✗ acceptance" in text


def test_without_a_terminal_every_event_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with watching("script.py", 600.0) as progress:
        for event in EVENTS:
            progress(event)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(EVENTS)
    assert "capture: started, 10m00s of the budget left" in lines[0]
    assert "capture: the model was called" in lines[1]
    assert "capture: finished after" in lines[2]
    assert "acceptance: failed: no time after" in lines[-1]


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with watching("script.py", 600.0, quiet=True) as progress:
        progress(EVENTS[0])
    assert capsys.readouterr().err == ""
