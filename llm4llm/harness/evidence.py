"""What one driver call did: its result, the logits of every step, and the state that it left behind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from llm4llm.harness import values
from llm4llm.harness.instrument import instrumented
from llm4llm.harness.phases import Phase
from llm4llm.harness.replay import replay
from llm4llm.harness.workload import FORWARD, DriverEntry

MAX_LOGITS_BYTES = 256 << 20
# In 16 bit a right result is off by rounding alone, half an eps at most; in 32 bit sums in another order add a few eps.
AMPLITUDE = {torch.float16: 0.5, torch.bfloat16: 0.5, torch.float32: 2.0, torch.float64: 2.0}
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Leaf:
    """One leaf of a nested value: a tensor's contract and a copy of it, or a scalar. Other things are known by their class alone."""

    kind: str
    value: Any

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, torch.Tensor)


def flat(value: Any) -> dict[str, Leaf]:
    """Path → leaf of a nested value, tensors copied."""
    leaves: dict[str, Leaf] = {}
    for path, item in values.leaves(value):
        if isinstance(item, torch.Tensor):
            kind = f"{item.dtype} {list(item.shape)} on {item.device}"
            leaves[path] = Leaf(kind, item.detach().clone() if item.layout is torch.strided and not item.is_meta else None)
        else:
            leaves[path] = Leaf(type(item).__name__, item if isinstance(item, _SCALARS) else None)
    return leaves


@dataclass
class Evidence:
    """`logits` holds one float32 CPU tensor [rows, classes] per root forward of a driver call that generates, as far as memory allows."""

    result: dict[str, Leaf] = field(default_factory=dict)
    state: dict[str, Leaf] = field(default_factory=dict)
    logits: list[torch.Tensor] = field(default_factory=list)
    logits_dtype: torch.dtype = torch.float32  # as the model gave them
    root_calls: int = 0


class Jitter:
    """Rounding errors as a right patch could make them: normal noise of AMPLITUDE eps, of the larger of the element and its row's rms.

    It draws from a generator of its own, so that the call's random numbers stay what they are.
    """

    def __init__(self, paths: frozenset[str], seed: int = 0) -> None:
        self.paths = paths
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __call__(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return self._shaken(result)
        if type(result) in (tuple, list):
            return type(result)(self._shaken(item) for item in result)
        if isinstance(result, dict):
            for key, item in result.items():
                shaken = self._shaken(item)
                if shaken is not item:
                    result[key] = shaken
        return result

    def _shaken(self, item: Any) -> Any:
        if not isinstance(item, torch.Tensor) or not item.is_floating_point() or not item.numel() or item.is_meta:
            return item
        generator = self._generators.get(item.device)
        if generator is None:
            generator = self._generators[item.device] = torch.Generator(device=item.device).manual_seed(self._seed)
        exact = item.detach().float()
        typical = exact.square().mean(-1, keepdim=True).sqrt() if item.dim() else exact.abs()
        noise = torch.randn(exact.shape, generator=generator, device=item.device)
        size = AMPLITUDE.get(item.dtype, 0.5) * torch.finfo(item.dtype).eps
        return (exact + size * torch.maximum(exact.abs(), typical) * noise).to(item.dtype)


def observe(driver: DriverEntry, example: int = 0, jitter: Jitter | None = None) -> Evidence:
    """One repetition of the driver call with the model as it is now; whatever the call raises passes through."""
    evidence = Evidence()
    last: dict[str, Any] = {}
    steps = driver.method != FORWARD

    def watch(
        path: str, module: nn.Module, phase: Phase, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = original(*args, **kwargs)
        if jitter is not None and path in jitter.paths:
            result = jitter(result)
        if path == "":
            evidence.root_calls += 1
            last["args"], last["kwargs"] = args, kwargs
            if steps:
                _keep_logits(evidence, result)
        return result

    @contextmanager
    def around() -> Iterator[None]:
        yield
        kept = {path: {**item["plain"], **item["buffers"]} for path, item in values.kept_by(driver.root.module).items()}
        # ids and masks of the last forward follow from the tokens; what can hold a state are its objects and containers
        objects = [item for item in (*last.get("args", ()), *last.get("kwargs", {}).values()) if not isinstance(item, torch.Tensor)]
        evidence.state = flat({"kept": kept, "objects": objects})

    paths = frozenset({""}) | (jitter.paths if jitter is not None else frozenset())
    with instrumented(driver.root, watch, paths=paths, driver=driver):
        result = replay(driver, around, example=example)
    evidence.result = flat(result)
    return evidence


def _keep_logits(evidence: Evidence, result: Any) -> None:
    found = result if isinstance(result, torch.Tensor) else getattr(result, "logits", None)
    if found is None and isinstance(result, (tuple, list)):
        found = next((item for item in result if isinstance(item, torch.Tensor) and item.is_floating_point()), None)
    if not isinstance(found, torch.Tensor) or not found.is_floating_point() or found.dim() not in (2, 3) or not found.numel():
        return
    held = sum(one.numel() for one in evidence.logits) * 4
    rows = found[:, -1] if found.dim() == 3 else found
    if held + rows.numel() * 4 <= MAX_LOGITS_BYTES:
        evidence.logits_dtype = found.dtype
        evidence.logits.append(rows.detach().float().cpu())
