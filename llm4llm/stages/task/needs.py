"""What a seed's file says about where it fits, read without running it."""

from pathlib import Path

from llm4llm.kit import Source, SourceRefused, read_source


def needs_cuda(seed: Path) -> bool:
    """True for a file with Triton kernels: whatever else it holds, those run on a GPU only."""
    source = _read(seed)
    return source is not None and "triton" in source.imports


def phases(seed: Path) -> frozenset[str] | None:
    """Phases named by a constant `PHASES = ("decode", ...)`; None for a file that names none and is for all of them."""
    source = _read(seed)
    return frozenset(source.strings["PHASES"]) if source is not None and "PHASES" in source.strings else None


def _read(seed: Path) -> Source | None:
    """None for what is no Python: the judge's verdict says what is wrong with it."""
    try:
        return read_source(seed.read_bytes())
    except SourceRefused:
        return None
