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
