import pytest

from llm4llm.errors import BadFileName
from llm4llm.service.names import check_together, checked_name


@pytest.mark.parametrize("name", ["a.py", "a/b/c.txt", "é/ü.bin", ".hidden", "a b.txt", "x" * 200, "...", "a..b"])
def test_names_that_stay_in_the_folder(name: str) -> None:
    assert checked_name(name) == name
    assert checked_name(f"./{name}") == name


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", "../a", "a/..", "a/../b", "/a", "//a", "a//b", "a/", "./../a", "././a", "a\\b", "C:\\a", "C:a",
        "a\0b", "a\nb", "\x7f", " a", "a ", "a/ b", "x" * 201, "é" * 101, "a/" * 200 + "a", "\ud800", "\u202ea",
    ],
)  # fmt: skip
def test_names_that_could_leave_it_or_are_none(name: str) -> None:
    with pytest.raises(BadFileName):
        checked_name(name)


@pytest.mark.parametrize("names", [["a", "a"], ["a", "a/b"], ["a/b/c", "a/b"]])
def test_two_files_at_one_place(names: list[str]) -> None:
    with pytest.raises(BadFileName):
        check_together(names)


def test_files_beside_each_other() -> None:
    check_together(["a/b", "a/c", "ab", "a.b"])
