import pytest

from llm4llm.errors import BadArguments
from llm4llm.kit import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("45", 45),
        (" 2M ", 120),
        ("250ms", 0.25),
        ("1h 1m 1s", 3661),
        ("2d", 172800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "ten minutes", "10x", "5m5m", "-3s", "0s", "m", "1h-2m", "1e3"])
def test_what_is_no_duration_says_how_to_write_one(text: str) -> None:
    with pytest.raises(BadArguments, match="10m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.94, "9.9s"), (59.4, "59s"), (185, "3m05s"), (3725, "1h02m"), (-1, "0.0s")]
)
def test_text_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
