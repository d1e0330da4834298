"""Open a bundle folder or archive, check it, and put its patches on the model that they were made for."""

from pathlib import Path
from typing import Any

from torch import nn

from .apply import Handle


def open_bundle(path: Path | str) -> "OpenBundle":
    """A bundle whose every file has the sha256 that its manifest names. Raises Refused otherwise."""
    raise NotImplementedError


class OpenBundle:
    """A verified bundle."""

    manifest: dict[str, Any]

    def fits(self, model: nn.Module) -> str | None:
        """None if the bundle was made for this model, else why not."""
        raise NotImplementedError

    def apply(self, model: nn.Module) -> Handle:
        """Check environment, model and every site, then install. Raises Refused with the model untouched."""
        raise NotImplementedError
