"""What a seed's file says about the device it needs."""

from pathlib import Path

import pytest

from llm4llm.stages.task.needs import needs_cuda, phases


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import triton\n", True),
        ("import triton.language as tl\n", True),
        ("from triton.language import math\n", True),
        ("def forward(module, state, x):\n    import triton\n", True),
        ('"""No triton here."""\nimport torch\n', False),
        ("from . import triton\n", False),
    ],
)
def test_triton_imports_tell(tmp_path: Path, text: str, expected: bool) -> None:
    file = tmp_path / "candidate.py"
    file.write_text(text)
    assert needs_cuda(file) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('PHASES = ("decode",)\n', {"decode"}),
        ('import torch\n\nPHASES = ["prefill", "encode"]  # whole sequences\n', {"prefill", "encode"}),
        ("def forward(module, state, x):\n    PHASES = ()\n", None),
    ],
)
def test_phases_that_a_seed_is_for(tmp_path: Path, text: str, expected: set[str] | None) -> None:
    file = tmp_path / "candidate.py"
    file.write_text(text)
    assert phases(file) == expected


@pytest.mark.parametrize("text", ["x = a" + ".b" * 100_000, "x = (", "PHASES = 1\n"])
def test_what_can_not_be_read_needs_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "candidate.py"
    file.write_text(text)
    assert not needs_cuda(file)
    assert phases(file) is None
