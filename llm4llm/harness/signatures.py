"""A call's signature: what its cost depends on, in words that are the same in every run of the script."""

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from llm4llm.harness import values
from llm4llm.harness.ambient import Ambient, dtype_name

MAX_CHARACTERS = 240
_MAX_TEXT = 24
_MAX_ITEMS = 16
_MAX_LEAVES = 4096


def call_signature(args: tuple[Any, ...], kwargs: dict[str, Any], ambient: Ambient) -> str:
    """Shapes, dtypes, scalars and modes of one call; at most MAX_CHARACTERS characters, what is longer ends in a hash of the whole."""
    parts = [described(item) for item in args] + [f"{key}={described(kwargs[key])}" for key in sorted(kwargs, key=str)]
    label = ambient.label()
    return shortened(", ".join(parts) + (f" | {label}" if label else ""))


def loop_signature(steps: list[str]) -> str:
    """The signature of a loop from those of its forwards."""
    digest = hashlib.sha256("\n".join(steps).encode()).hexdigest()[:8]
    return shortened(f"{len(steps)} steps #{digest}: {steps[0]} ... {steps[-1]}")


def shortened(text: str) -> str:
    """The text itself if it is short, else its beginning and a hash of all of it."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[: MAX_CHARACTERS - 13]}... #{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def described(value: Any) -> str:
    """A value in a few words, without addresses, names of files or contents of tensors."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if value is None or isinstance(value, (bool, int, float, complex)):
        return repr(value)
    if isinstance(value, str):
        return repr(value) if len(value) <= _MAX_TEXT else f"str[{len(value)}]"
    if isinstance(value, (bytes, bytearray)):
        return f"bytes[{len(value)}]"
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, (nn.Module, type)) or callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, (list, tuple)):
        return f"[{_items(map(described, value))}]"
    if isinstance(value, dict) and not values.is_object(value):
        return "{" + _items(f"{key}: {described(item)}" for key, item in value.items()) + "}"
    return f"{type(value).__name__}({_items(_leaf(leaf) for _, leaf in itertools.islice(values.leaves(value), _MAX_LEAVES))})"


def _leaf(leaf: object) -> str:
    # an opaque object would lead back to its own leaves
    known = isinstance(leaf, (torch.Tensor, bool, int, float, str, bytes, type(None), torch.dtype, torch.device))
    return described(leaf) if known else type(leaf).__name__


def _items(parts: Iterable[str]) -> str:
    """Equal neighbours counted; a long rest as a hash."""
    runs = [(text, len(list(group))) for text, group in itertools.groupby(parts)]
    texts = [text if count == 1 else f"{count} x {text}" for text, count in runs]
    if len(texts) <= _MAX_ITEMS:
        return ", ".join(texts)
    rest = "\n".join(texts[_MAX_ITEMS:])
    return ", ".join(texts[:_MAX_ITEMS]) + f", +{len(texts) - _MAX_ITEMS} #{hashlib.sha256(rest.encode()).hexdigest()[:8]}"


def _tensor(tensor: torch.Tensor) -> str:
    text = f"{dtype_name(tensor.dtype)}[{','.join(str(int(size)) for size in tensor.shape)}]"
    if tensor.layout is torch.strided and not tensor.is_contiguous():
        text += f"/{','.join(str(int(step)) for step in tensor.stride())}"
    return text if tensor.device.type == "cpu" else f"{text}@{tensor.device}"
