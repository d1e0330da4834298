"""Which inputs a piece of code looks into."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from llm4llm.harness.touched import Touched, storage_bytes, storage_of

SIZE = 64


def found(function: Callable[[torch.Tensor], object]) -> bool:
    tensor = torch.randn(SIZE, SIZE)
    with torch.no_grad(), Touched() as touched:
        function(tensor)
    return touched.touches(tensor)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: x.t()[1:].sum(),
        lambda x: x.narrow(0, 0, 1).clone(),
        lambda x: x[0].fill_(3),
        lambda x: torch.add(torch.ones(SIZE, SIZE), 1, out=x),
        lambda x: x[0, 0].item(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.view(-1).data_ptr(),
        lambda x: torch.nn.functional.linear(torch.ones(1, SIZE), x),
        lambda x: torch.cat([x, x]),
        lambda x: torch.ones(SIZE, SIZE).copy_(x),
        lambda x: bool(x.isnan().any()),
    ],
)
def test_reads_and_writes_are_seen_through_views_and_raw_access(function: Callable[[torch.Tensor], object]) -> None:
    assert found(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.shape, x.stride(), x.device, x.dtype, x.dim(), x.numel(), len(x)),
        lambda x: x.view(-1)[3:].unsqueeze(0).expand(4, -1),
        lambda x: (torch.empty_like(x), x.new_zeros(3), torch.ones_like(x)),
        lambda x: x.transpose(0, 1).split(2),
        lambda x: x.contiguous() is x,
        lambda x: [x, {"kept": x.detach()}],
    ],
)
def test_looks_at_the_form_alone_are_not(function: Callable[[torch.Tensor], object]) -> None:
    assert not found(function)


def test_inference_mode_and_nesting_do_not_hide_anything() -> None:
    first, second, third = (torch.randn(SIZE, SIZE) for _ in range(3))
    layer = nn.Linear(SIZE, SIZE)
    with torch.inference_mode(), Touched() as outer:
        layer(first)
        with Touched() as inner:
            assert storage_bytes(third) == 4 * SIZE * SIZE
            assert storage_of(third) is not None
            second.sum()
    assert [outer.touches(one) for one in (first, second, third, layer.weight)] == [True, True, False, True]
    assert [inner.touches(one) for one in (first, second, third)] == [False, True, False]


def test_tensors_without_plain_memory_count_as_touched() -> None:
    with Touched() as touched:
        pass
    assert touched.touches(torch.ones(2, 2).to_sparse())
    assert storage_bytes(torch.ones(2, 2).to_sparse()) == 0
