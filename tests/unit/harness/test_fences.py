import pytest
import torch

from llm4llm.harness.fences import Fences, fenced


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_a_fenced_tensor_is_the_same_tensor(dtype: torch.dtype) -> None:
    fences = Fences()
    for tensor in (torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(3, 1).expand(3, 4), torch.ones(2, 8)[:, ::2], torch.ones(())):
        tensor = tensor.to(dtype) if 0 not in tensor.stride() else tensor[:, :1].to(dtype).expand(3, 4)
        inner = fences.around(tensor, "x")
        assert (inner.stride(), inner.dtype) == (tensor.stride(), tensor.dtype)
        assert torch.equal(inner, tensor)
        assert inner._base is None
    assert fences.broken() is None


@pytest.mark.parametrize(("step", "side"), [(-1, "before the first element"), (12, "behind the last element")])
def test_a_write_beside_a_tensor_is_seen(step: int, side: str) -> None:
    fences = Fences()
    with fenced(fences):
        made = torch.empty(3, 4)
    torch.as_strided(made, (1,), (1,), made.storage_offset() + step).fill_(0.0)
    assert fences.broken() == f"it writes {side} of a tensor made by empty"


def test_what_is_read_there_is_nan() -> None:
    inner = Fences().around(torch.ones(3, 4), "x")
    assert torch.as_strided(inner, (1,), (1,), inner.storage_offset() + 12).isnan().all()


def test_arguments_that_share_memory_stay_where_they_are() -> None:
    x, y = torch.ones(4), torch.ones(4)
    args, kwargs = Fences().around_arguments((x, x[:2], y), {"z": None}, [x, x[:2], y])
    assert args[0] is x
    assert args[2] is not y
    assert kwargs == {"z": None}


def test_nothing_is_fenced_outside() -> None:
    with fenced(None):
        assert torch.empty(3).storage_offset() == 0
