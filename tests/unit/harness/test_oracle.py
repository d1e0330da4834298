from typing import Any

import pytest
import torch
from torch import nn

from llm4llm.harness.ambient import Ambient
from llm4llm.harness.calls import Call
from llm4llm.harness.oracle import Original, OutOfRange


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs, {}, None, "forward", "made", 0, "captured")


class Squares(nn.Module):
    """Casts to single precision in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([3.0], dtype=torch.bfloat16))
        self.compute = torch.float32

    def forward(self, x: torch.Tensor, way: str) -> torch.Tensor:
        if way == "float":
            y = x.float()
        elif way == "to":
            y = x.to(torch.float32)
        elif way == "dtype":
            y = torch.softmax(x, -1, dtype=torch.float32)
        elif way == "attribute":
            y = x.to(self.compute)
        else:
            y = x * torch.full((1,), 1 / 3, dtype=torch.float32)
        return (y / 3.0 * self.weight).to(x.dtype)


@pytest.mark.parametrize("way", ["float", "to", "dtype", "attribute", "full"])
def test_requested_dtypes_are_raised(way: str) -> None:
    x = torch.tensor([[1.0, 2.0, 5.0]], dtype=torch.bfloat16)
    truth = Original(Squares(), Ambient()).truth(call(x, way))
    wide = x.double()
    y = {"dtype": wide.softmax(-1), "full": wide / 3}.get(way, wide)
    assert truth.oracle == "float64"
    assert torch.allclose(truth.exact["result"], y / 3 * 3, rtol=1e-14, atol=0)
    assert truth.leaves[0].dtype == "bfloat16"


class Choosy(nn.Module):
    def __init__(self, refused: set[torch.dtype]) -> None:
        super().__init__()
        self.refused = refused
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype in self.refused:
            raise RuntimeError(f"no kernel for {x.dtype}")
        return x * self.weight


def test_fallbacks_are_named() -> None:
    x = torch.ones(2, dtype=torch.bfloat16)
    assert Original(Choosy({torch.float64}), Ambient()).truth(call(x)).oracle == "float32"
    truth = Original(Choosy({torch.float64, torch.float32}), Ambient()).truth(call(x))
    assert (truth.oracle, truth.exact) == ("own", {})
    with pytest.raises(OutOfRange, match="no kernel"):
        Original(Choosy({torch.bfloat16}), Ambient()).truth(call(x))


def test_inputs_and_module_stay_as_they_are() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))
            self.total = 0

        def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            self.total += 1
            x.mul_(2)
            return other[:1]

    module = Writes()
    x, other = torch.ones(3), torch.ones(3)
    before = {"": {"plain": {"total": 5}, "buffers": {"seen": torch.full((1,), 7.0)}}}
    one = Call((x, other), {}, before, None, "forward", "made", 0, "captured")
    truth = Original(module, Ambient()).truth(one)
    assert torch.equal(x, torch.ones(3))
    assert (module.total, module.seen.item()) == (0, 0.0)
    assert truth.unchanged == {"args[1]"}
    assert truth.aliases == {("result", "args[1]")}
    assert truth.tree["kept"]["keys"][0][1]["keys"][0][1]["keys"] == [["'total'", {"is": "int", "value": 6}]]
    seen = next(one for one in truth.leaves if one.path.startswith("kept"))
    assert seen.values is not None
    assert seen.values.item() == 8.0


def test_random_draws_are_noticed() -> None:
    class Rolls(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(1)

    assert Original(Rolls(), Ambient()).truth(call(torch.ones(1))).draws
