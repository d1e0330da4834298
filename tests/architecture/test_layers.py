"""The import rules and the size rules of the project."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "llm4llm").rglob("*.py"))
LONGEST_FILE = 450
LONGEST_FUNCTION = 70


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def test_layers_import_downwards_only() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-logo"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("runtime", {"torch"}), ("harness", {"torch", "triton", "llm4llm"})],
)
def test_code_for_children_needs_nothing_but_torch(package: str, allowed: set[str]) -> None:
    for path in sorted((ROOT / "llm4llm" / package).rglob("*.py")):
        tops = {name.split(".")[0] for name in imports(path)} - sys.stdlib_module_names
        assert tops <= allowed, f"{path.relative_to(ROOT)} imports {sorted(tops - allowed)}"


def test_torch_is_imported_by_children_alone() -> None:
    for path in SOURCES:
        if {"harness", "runtime"} & set(path.relative_to(ROOT).parts):
            continue
        heavy = {"torch", "triton", "transformers"} & {name.split(".")[0] for name in imports(path)}
        assert not heavy, f"{path.relative_to(ROOT)} imports {sorted(heavy)}"


def test_starting_the_command_line_stays_light() -> None:
    code = "import sys, llm4llm.cli.main; print({'torch', 'triton', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LONGEST_FILE, "split it by noun"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


def test_data_folders_are_no_packages() -> None:
    for folder in ("agents", "profiles", "patches", "migrations"):
        assert not (ROOT / folder / "__init__.py").exists()
