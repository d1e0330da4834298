import hashlib
from pathlib import Path

import pytest

from llm4llm.kit import canonical_json, sha256_bytes, sha256_file, sha256_text


def test_equal_values_have_one_text() -> None:
    assert (
        canonical_json({"b": [1, 2.5, None], "a": "ü"}) == canonical_json({"a": "ü", "b": (1, 2.5, None)}) == '{"a":"ü","b":[1,2.5,null]}'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": -float("inf")}])
def test_what_json_can_not_say_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        canonical_json(value)


def test_hashes_of_text_bytes_and_file_agree(tmp_path: Path) -> None:
    file = tmp_path / "content"
    file.write_text("größe", encoding="utf-8")
    expected = hashlib.sha256("größe".encode()).hexdigest()
    assert sha256_text("größe") == sha256_bytes("größe".encode()) == sha256_file(file) == expected
