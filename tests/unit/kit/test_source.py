"""Text that calls itself Python is read without running it, and without harm to whoever reads."""

import resource

import pytest

from llm4llm.kit import MOST_SOURCE_BYTES, SourceRefused, read_source

LONG = (MOST_SOURCE_BYTES - 100) // 2


def test_what_a_file_says_of_itself() -> None:
    source = read_source(
        b'"""What it does."""\nPHASES = ("decode", "prefill")\nONE, MORE = (), [1]\n\ndef f():\n    import triton.language as tl\n'
    )
    assert (source.docstring, source.imports) == ("What it does.", {"triton"})
    assert source.strings == {"PHASES": ("decode", "prefill")}
    assert read_source(b"from . import a\nfrom .b import c\n").docstring == ""


def test_what_no_database_takes_is_left_out() -> None:
    assert read_source(b'"""a\\0b \\ud800."""\n').docstring == "ab ?."


@pytest.mark.parametrize(
    "text",
    [
        b"x = a" + b".b" * LONG,
        b"x = " + b"-" * LONG + b"1",
        b"x = a" + b"()" * LONG,
        b"x = (" * 1000,
        b"def f(:",
        b"\xff\xfe",
        b"x\0",
        b"x = 1\n" * MOST_SOURCE_BYTES,
    ],
    ids=["nested", "minus", "calls", "parentheses", "no syntax", "no text", "zero", "long"],
)
def test_what_can_not_be_read_is_refused(text: bytes) -> None:
    with pytest.raises(SourceRefused):
        read_source(text)


def test_a_name_that_takes_gigabytes_to_be_read_takes_them_from_nobody() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(SourceRefused, match="Memory"):
        read_source(b"import a" + b".b" * LONG)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before, 2 << 20)
