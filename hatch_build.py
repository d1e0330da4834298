"""Adds the data folders to wheels, under llm4llm/_assets.

Editable installs read them from the checkout instead: a copy there would go stale at the first edit.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDERS = ("agents", "profiles", "patches", "migrations")


class AssetsHook(BuildHookInterface):
    """Maps each data folder into the package for non-editable builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        for folder in FOLDERS:
            for path in sorted(Path(self.root, folder).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    inside = path.relative_to(self.root)
                    build_data["force_include"][str(path)] = f"llm4llm/_assets/{inside}"
