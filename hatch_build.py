"""Adds the data folders to wheels, under llm4llm/_assets.

Editable installs read them from the checkout instead: a copy there would go stale at the first edit.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = {name: name for name in ("agents", "profiles", "patches", "migrations")} | {"tests/judge_corpus": "judge_corpus"}


class AssetsHook(BuildHookInterface):
    """Maps each data folder into the package for non-editable builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for folder, name in FOLDERS.items():
            for path in sorted(Path(self.root, folder).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    inside = path.relative_to(Path(self.root, folder))
                    build_data["force_include"][str(path)] = f"llm4llm/_assets/{name}/{inside}"
