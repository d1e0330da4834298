"""What a seed's file says about the device it needs, read without running it."""

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
