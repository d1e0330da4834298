"""Bit-wise equality of tensors whatever their strides."""

import pytest
import torch

from llm4llm.harness.nested import same_tensor


@pytest.mark.parametrize(
    "view",
    [
        torch.randn(7)[3:4].as_strided((1, 1), (7, 7)),
        torch.randn(1).expand(5),
        torch.randn(4, 6)[:, ::2],
        torch.randn(3, 4, 5).transpose(0, 2),
        torch.randn(0, 3),
        torch.tensor(2.5),
        torch.tensor([True, False, True])[::2],
        torch.tensor([float("nan"), 1.0]),
    ],
    ids=["one element, odd strides", "broadcast", "every second column", "transposed", "empty", "scalar", "bool", "nan"],
)
def test_equal_to_its_copy_and_to_nothing_else(view: torch.Tensor) -> None:
    twin = (
        view.clone().as_strided(view.shape, view.stride())
        if view.is_contiguous()
        else torch.empty_strided(view.shape, view.stride(), dtype=view.dtype)
    )
    if 0 in view.stride():
        twin = view[:1].clone().expand(view.shape)
    else:
        twin.copy_(view)
    assert same_tensor(view, twin)
    assert not same_tensor(view, view.to(torch.float64) if view.dtype is not torch.float64 else view.float())


def test_zero_and_negative_zero_differ() -> None:
    assert not same_tensor(torch.tensor([0.0]), torch.tensor([-0.0]))
