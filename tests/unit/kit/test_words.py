"""Numbers and nouns agree, wherever both stand in a text of ours."""

import ast
import re
from pathlib import Path

import pytest

from llm4llm.harness import wording
from llm4llm.kit import counted

SOURCES = sorted((Path(__file__).parents[3] / "llm4llm").rglob("*.py"))
NOUNS = (
    "hotspot|site|hit|fallback|job|file|line|pair|call|candidate|task|kernel|worker|module|patche|tensor|driver call|event|instance|forward"
)


def test_one_is_singular() -> None:
    for count, text in ((0, "0 hotspots"), (1, "1 hotspot"), (2, "2 hotspots")):
        assert counted(count, "hotspot") == wording.counted(count, "hotspot") == text
    assert counted(1, "patch", "patches") == "1 patch"
    assert counted(3, "patch", "patches") == "3 patches"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_text_puts_a_count_before_a_plural_by_hand(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            for before, after in zip(node.values, node.values[1:]):
                counts = (
                    isinstance(before, ast.FormattedValue)
                    and isinstance(before.value, ast.Call)
                    and ast.unparse(before.value.func) == "len"
                )
                plural = isinstance(after, ast.Constant) and re.match(rf" ({NOUNS})s\b", str(after.value))
                assert not (counts and plural), f"{path}:{node.lineno}"
