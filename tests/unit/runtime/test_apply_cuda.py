"""Patches on CUDA: graphs under capture, kernels whose writes torch does not count, tensors elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_models import Scale, patched, spec

from llm4llm.runtime.apply import apply
from llm4llm.runtime.refusal import PatchFailed

pytestmark = pytest.mark.gpu

IN_PLACE = """
import triton
import triton.language as tl

CALLS = []

@triton.jit
def add_one(x, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

def forward(module, state, x):
    CALLS.append(1)
    add_one[(1,)](x, x.numel(), block=64)
    if len(CALLS) > GOOD:
        raise RuntimeError('after the write')
    return x * module.weight
"""


class AddsInPlace(Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * self.weight


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def test_tensors_elsewhere_fall_back(tmp_path: Path) -> None:
    module = Scale().cuda()
    handle = patched(tmp_path, module, torch.ones(2, 8, device="cuda"))
    module(torch.ones(2, 8, device="cuda"))
    with pytest.raises(RuntimeError, match="same device"):
        module(torch.ones(2, 8))  # as it would without patches
    module.cpu()
    assert torch.equal(module(torch.ones(2, 8)), module.weight.expand(2, 8))
    assert handle.status()["sites"][0]["fallback_reasons"] == {"device": 2}


def test_a_graph_under_capture_gets_the_original(tmp_path: Path) -> None:
    module, x = Scale().cuda(), torch.ones(2, 8, device="cuda")
    handle = patched(tmp_path, module, x)
    module(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(x)
    graph.replay()
    assert torch.equal(out, x * module.weight)
    assert handle.status()["sites"][0]["fallback_reasons"] == {"capturing": 1}


def test_the_first_call_of_a_kernel_that_writes_is_undone_and_a_later_one_is_an_error(tmp_path: Path) -> None:
    module = AddsInPlace().cuda()
    for good in (0, 1):
        x = torch.ones(2, 8, device="cuda")
        handle = apply(module, [spec(tmp_path, module, [((x,), {})], IN_PLACE.replace("GOOD", str(good)), effects=True)])
        for call in range(good):
            module(x)
            assert torch.equal(x, torch.full_like(x, 2.0 + call))
        if good:
            with pytest.raises(PatchFailed):
                module(x)
        else:
            assert torch.equal(module(x), 2 * module.weight.expand(2, 8))
            assert torch.equal(x, torch.full_like(x, 2.0))
        handle.remove()
