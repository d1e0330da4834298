"""What a seed's file says about where it fits, read without running it."""

import ast
from pathlib import Path


def needs_cuda(seed: Path) -> bool:
    """True for a file with Triton kernels: whatever else it holds, those run on a GPU only."""
    tree = ast.parse(seed.read_bytes(), filename=str(seed))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            imported.add(node.module.split(".")[0])
    return "triton" in imported


def phases(seed: Path) -> frozenset[str] | None:
    """Phases named by a constant `PHASES = ("decode", ...)`; None for a file that names none and is for all of them."""
    for node in ast.parse(seed.read_bytes(), filename=str(seed)).body:
        if isinstance(node, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "PHASES" for name in node.targets):
            return frozenset(ast.literal_eval(node.value))
    return None
