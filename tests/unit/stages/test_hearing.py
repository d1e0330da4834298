"""Events of a host whose script may say anything."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, StageName
from llm4llm.stages import hearing
from llm4llm.stages.capture.run import _heard
from llm4llm.stages.hearing import MORE, MOST_CHARACTERS, MOST_EVENTS, Hearer

JOB = cast(Job, SimpleNamespace(id="job_1"))


def told(said: list[Any]) -> list[Event]:
    events: list[Event] = []
    hearer = Hearer(JOB, StageName.CAPTURE, events.append, _heard)
    for one in said:
        hearer(one)
    return events


def test_an_honest_script_is_told_whole() -> None:
    driver = {"root": "Net", "method": "forward", "signature": "f32[1]"}
    first, second = told([{"driver": driver}, {"note": {"code": "c", "text": "odd"}}])
    assert (first.text, first.facts) == ("new kind of call: Net.forward(f32[1])", {"driver": driver})
    assert (second.text, second.facts) == ("odd", {"note": {"code": "c", "text": "odd"}})


def test_too_many_events_end_with_one_that_says_so() -> None:
    events = told([{"note": {"code": "c", "text": str(number)}} for number in range(3 * MOST_EVENTS)])
    assert len(events) == MOST_EVENTS
    assert [event.text for event in events].count(MORE) == 1
    assert events[-1].text == MORE


def test_long_events_are_cut_and_soon_enough() -> None:
    events = told([{"note": {"code": "c", "text": "x" * 60_000, "pad": "y" * 60_000}}] * 2_000)
    assert events[-1].text == MORE
    assert sum(len(event.model_dump_json()) for event in events) < 2 * MOST_CHARACTERS


@pytest.mark.parametrize("said", [{}, {"driver": None}, {"driver": []}, {"driver": {"root": {}}}, {"note": "x"}, {"note": {"text": []}}])
def test_what_makes_no_sense_is_no_fault(said: dict[str, Any]) -> None:
    (event,) = told([said])
    assert event.text


def test_words_are_short() -> None:
    assert hearing.words({"a": "x" * 10_000, "b": [], "c": 1}, "a", "b", "c", "d") == {"a": "x" * 2_000, "c": "1"}
