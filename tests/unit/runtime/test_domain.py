import json
from typing import Any

import pytest
import torch
from runtime_models import Attention, Cache, Scale
from torch import nn

from llm4llm.runtime.domain import Guard, compile_guard, merge, observe

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


class Anything(nn.Module):
    """Takes whatever comes."""

    def forward(self, *args: Any, **kwargs: Any) -> None:
        return None


def guard_of(module: nn.Module, calls: Calls) -> Guard:
    domain = json.loads(json.dumps(merge([observe(module, args, kwargs) for args, kwargs in calls])))
    guard = compile_guard(domain, module)
    assert [guard(args, kwargs) for args, kwargs in calls] == [None] * len(calls)
    return lambda args, kwargs, _alive=module: guard(args, kwargs)


def rows(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, 8)


def test_sizes_span_a_range_and_constant_axes_stay() -> None:
    guard = guard_of(Scale(), [((rows(2, 3),), {}), ((rows(2, 9),), {})])
    assert guard((rows(2, 5),), {}) is None
    assert guard((rows(2, 10),), {}) == "shape"
    assert guard((rows(3, 5),), {}) == "shape"
    assert guard((torch.zeros(2, 5),), {}) == "shape"


def test_sizes_that_were_always_equal_must_be_equal() -> None:
    calls: Calls = [((rows(size, 4),), {"mask": torch.zeros(size, 1, 4)}) for size in (1, 3)]
    guard = guard_of(Anything(), calls)
    assert guard((rows(2, 4),), {"mask": torch.zeros(2, 1, 4)}) is None
    assert guard((rows(2, 4),), {"mask": torch.zeros(1, 1, 4)}) == "unequal_sizes"


def test_dtype_type_and_binding_are_exact() -> None:
    guard = guard_of(Scale(), [((rows(1, 2),), {})])
    assert guard((rows(1, 2).double(),), {}) == "dtype"
    assert guard((None,), {}) == "type"
    assert guard((), {"x": rows(1, 2)}) == "binding"
    assert guard((rows(1, 2), None), {}) == "binding"
    assert guard((torch.zeros(1, 2, 8, device="meta"),), {}) == "device"


def test_strides_follow_a_pattern_not_numbers() -> None:
    wide, wider = torch.zeros(2, 3, 24)[..., :8], torch.zeros(2, 3, 48)[..., :8]
    guard = guard_of(Scale(), [((wide,), {})])
    assert guard((wider,), {}) is None
    assert guard((rows(2, 3),), {}) == "strides"
    assert guard((torch.zeros(2, 3, 16)[..., ::2],), {}) == "strides"
    assert guard((torch.zeros(3, 2, 8).transpose(0, 1),), {}) == "strides"
    assert guard((torch.zeros(1, 3, 8).expand(2, 3, 8),), {}) == "strides"


def test_absent_and_present_arguments_are_alternatives() -> None:
    one, two = {"mask": None}, {"mask": torch.zeros(1, 2)}
    guard = guard_of(Anything(), [((rows(1, 2),), one), ((rows(1, 2),), two)])
    assert guard((rows(1, 2),), {"mask": torch.zeros(1, 3)}) in ("shape", "argument")
    assert guard((rows(1, 2),), {"mask": False}) is not None
    assert guard_of(Anything(), [((rows(1, 2),), one)])((rows(1, 2),), two) == "argument"


def test_scalars_are_exact_and_integers_span_a_range() -> None:
    def call(**more: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"use": True, "mode": "fast", "scale": 0.5, "dtype": torch.float32, "start": 4, **more}

    guard = guard_of(Anything(), [call(), call(start=9)])
    assert guard(*call(start=6)) is None
    for change in ({"start": 10}, {"start": True}, {"use": False}, {"use": 1}, {"mode": "slow"}, {"scale": 0.25}, {"dtype": torch.float64}):
        assert guard(*call(**change)) == "argument"


def test_structures_are_checked_to_their_leaves() -> None:
    guard = guard_of(Anything(), [(((rows(1, 2), rows(1, 2)), {"a": rows(1, 1)}), {})])
    assert guard(((rows(1, 2), rows(1, 3)), {"a": rows(1, 1)}), {}) == "shape"
    assert guard(((rows(1, 2),), {"a": rows(1, 1)}), {}) == "structure"
    assert guard(([rows(1, 2), rows(1, 2)], {"a": rows(1, 1)}), {}) == "structure"
    assert guard(((rows(1, 2), rows(1, 2)), {"b": rows(1, 1)}), {}) == "structure"


def test_a_cache_counts_as_empty_or_filled_for_the_layer_that_looks() -> None:
    module = Attention(1)
    empty, filled, longer, other = Cache(), Cache(), Cache(), Cache()
    for cache, index, length in ((filled, 1, 3), (longer, 1, 40), (other, 0, 3)):
        cache.update(index, rows(1, length))
    prefill = guard_of(module, [((rows(1, 4),), {"cache": empty})])
    decode = guard_of(module, [((rows(1, 1),), {"cache": filled})])
    assert prefill((rows(1, 4),), {"cache": other}) is None
    assert prefill((rows(1, 4),), {"cache": filled}) == "object_state"
    assert decode((rows(1, 1),), {"cache": longer}) is None
    assert decode((rows(1, 1),), {"cache": other}) == "object_state"
    assert decode((rows(1, 1),), {"cache": Cache(1)}) == "object_state"
    assert decode((rows(1, 2),), {"cache": filled}) == "shape"


def test_one_domain_holds_both_cache_regimes() -> None:
    module, filled = Attention(0), Cache()
    filled.update(0, rows(1, 3))
    guard = guard_of(module, [((rows(1, 4),), {"cache": Cache()}), ((rows(1, 1),), {"cache": filled})])
    assert guard((rows(1, 4),), {"cache": filled}) is not None  # several tokens with a live state were never shown correct


def test_modes_are_part_of_the_domain() -> None:
    module = Scale().eval()
    guard = guard_of(module, [((rows(1, 2),), {})])
    with torch.inference_mode():
        assert guard((rows(1, 2),), {}) == "inference_mode"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert guard((rows(1, 2),), {}) == "autocast"
    with torch.enable_grad():
        assert guard((rows(1, 2),), {}) == "grad_enabled"
        module.weight.requires_grad_(False)
        assert guard((rows(1, 2),), {}) is None
        assert guard((rows(1, 2).requires_grad_(),), {}) == "grad_enabled"
    module.train()
    assert guard((rows(1, 2),), {}) == "training"


def test_calls_that_record_gradients_are_never_inside() -> None:
    module = Scale()
    with torch.enable_grad():
        domain = merge([observe(module, (rows(1, 2),), {})])
        assert compile_guard(domain, module)((rows(1, 2),), {}) == "grad_enabled"


def test_what_no_guard_can_describe_is_always_outside() -> None:
    strange = torch.zeros(2, 2).to_sparse()
    module = Anything()
    domain = merge([observe(module, (strange,), {})])
    assert compile_guard(domain, module)((strange,), {}) == "unsupported_argument"
