"""What the tests of files and folders share."""

from pathlib import Path

import pytest


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret" / "file.txt"
    file.parent.mkdir()
    file.write_text("secret")
    return file
