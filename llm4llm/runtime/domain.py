"""The calls on which a candidate was shown correct, as JSON, and the guard that is derived from them."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

Guard = Callable[[tuple[Any, ...], dict[str, Any]], str | None]


def observe(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Facts of one call, taken before it runs and inside its grad, inference and autocast state; JSON-able."""
    raise NotImplementedError


def merge(observations: Sequence[dict[str, Any]], effects: bool | None = None) -> dict[str, Any]:
    """The proven domain that a set of observed calls spans; JSON-able.

    `effects`: whether the original changes anything that it can reach (cache, argument, module state); None if nobody looked.
    """
    raise NotImplementedError


def compile_guard(domain: dict[str, Any], module: nn.Module) -> Guard:
    """A function of (args, kwargs) that is None inside the domain, else a short reason code; no device synchronisation."""
    raise NotImplementedError
