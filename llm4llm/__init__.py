"""llm4llm: a closed-loop optimizer for PyTorch inference scripts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm4llm.client import Client

__all__ = ["Client"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`llm4llm.Client`, imported when it is asked for: children import this package and have no httpx."""
    if name == "Client":
        from llm4llm.client import Client

        return Client
    raise AttributeError(f"module 'llm4llm' has no attribute {name!r}")
