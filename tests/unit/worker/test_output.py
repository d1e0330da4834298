"""Whether two runs of a script printed the same."""

import tracemalloc

import pytest

from llm4llm.worker.output import difference


def test_equal_bytes_are_equal() -> None:
    assert difference(b"a\nb\xff", b"a\nb\xff", None) is None


@pytest.mark.parametrize("again", [None, b"tokens: 1 2 3\ntook 0.50 s\n"])
def test_other_tokens_are_a_difference(again: bytes | None) -> None:
    found = difference(b"tokens: 1 2 3\ntook 0.50 s\n", b"tokens: 1 2 4\ntook 0.50 s\n", again)
    assert found == "line 1 is 'tokens: 1 2 4' instead of 'tokens: 1 2 3'"


def test_numbers_in_lines_that_vary_by_themselves_may_vary() -> None:
    expected, again = b"tokens: 1 2\ntook 0.50 s at 0x7f01\n", b"tokens: 1 2\ntook 0.61 s at 0x7fa2\n"
    assert difference(expected, b"tokens: 1 2\ntook 0.2 s at 0x1\n", again) is None
    assert difference(expected, b"tokens: 1 2\nfailed after 0.2 s\n", again) is not None
    assert difference(expected, b"tokens: 1 2\ntook 0.2 s at 0x1\n", expected) is not None


def test_many_lines_take_no_more_memory_than_their_text() -> None:
    expected = b"\n" * (1 << 18)
    tracemalloc.start()
    assert difference(expected, b"x" + expected, expected) == "line 1 is 'x' instead of ''"
    assert difference(expected, expected[1:] + b"x\n", expected) == f"line {1 << 18} is 'x' instead of ''"
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()


def test_missing_lines_are_a_difference() -> None:
    assert difference(b"a\nb\n", b"a\n", None) == "2 lines instead of 3"


def test_a_line_is_one_line() -> None:
    assert difference(b"a\nb", b"a", None) == "1 line instead of 2"


@pytest.mark.parametrize(
    ("expected", "found", "again"),
    [
        (b"1\n" * 400_000, b"2\n" * 400_000, b"3\n" * 400_000),
        (b"1 " * 4_000_000, b"2 " * 4_000_000, b"3 " * 4_000_000),
        (b"1\n" * 20_000_000, b"2\n" * 20_000_000, b"3\n" * 20_000_000),
        (b"1\n" * 8_000_000, b"2\n" * 8_000_000, b"3\n" * 8_000_000),
    ],
    ids=["short lines", "one long line", "much", "many lines"],
)
def test_comparing_takes_little_beside_the_texts(expected: bytes, found: bytes, again: bytes) -> None:
    tracemalloc.start()
    try:
        said = difference(expected, found, again)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert (said is None) == (len(expected) < 1 << 20)


def test_what_a_line_holds_can_not_steer_a_terminal() -> None:
    assert difference(b"a", b"\x1b[2J\r\xc2\x9b", None) == "line 1 is '\\x1b[2J\\r\\x9b' instead of 'a'"
