"""Repeating driver calls: same values as in the script, and nothing left behind."""

import random
import threading
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from watching import Drawer, Echo, Watched, echo

from llm4llm.harness.replay import NotRecorded, replay, timed

X = torch.arange(8.0).reshape(2, 4)


def test_random_numbers_are_those_of_the_script() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        first, second = model.generate(X), model.generate(X)
    driver = seen.workload.drivers[0]
    state = torch.get_rng_state(), random.getstate()
    assert torch.equal(replay(driver), first)
    assert torch.equal(replay(driver, example=1), second)
    spent_ms, result = timed(driver)
    assert torch.equal(result, first)
    assert spent_ms > 0
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]


def test_loops_hand_their_cache_along() -> None:
    with Watched() as seen, torch.no_grad():
        model, drawer = echo(), Drawer()
        expected = [model(X + step, drawer) for step in range(4)]
    for _ in range(2):
        results = replay(seen.workload.drivers[0])
        assert all(map(torch.equal, results, expected))
    assert len(drawer.kept) == 4


def test_loops_hand_returned_tensors_along() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        past: tuple[torch.Tensor, ...] = (X,)
        expected = []
        for step in range(3):
            out, past = model(X + step, past=past)
            expected.append(out)
    _, results = timed(seen.workload.drivers[0])
    assert all(torch.equal(result[0], out) for result, out in zip(results, expected, strict=True))
    assert all(tensor is not mine for tensor in results[-1][1] for mine in past)


def test_a_cache_object_that_the_model_made_is_handed_along() -> None:
    class Making(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = echo()

        def forward(self, x: torch.Tensor, drawer: Drawer | None = None) -> dict[str, Any]:
            drawer = Drawer() if drawer is None else drawer
            return {"y": self.inner(x, drawer), "drawer": drawer}

    with Watched() as seen, torch.no_grad():
        model, out, expected = Making().eval(), {"drawer": None}, []
        for step in range(3):
            out = model(X + step, out["drawer"])
            expected.append(out["y"])
    assert seen.drivers() == [("loop", 1, None)]
    assert [torch.equal(result["y"], y) for result, y in zip(replay(seen.workload.drivers[0]), expected, strict=True)] == [True] * 3


def test_state_on_the_module_is_that_of_the_call_and_comes_back() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        model(X)
        model(X)
        model.extra = "set later"  # type: ignore[assignment]
    driver = seen.workload.drivers[0]
    buffer, plain = model.calls, dict(vars(model))
    during: list[int] = []

    @contextmanager
    def looking() -> Any:
        during.append(int(model.calls))
        assert not hasattr(model, "extra")
        yield

    for _ in range(3):
        replay(driver, looking)
        assert model.calls is buffer
        assert int(buffer) == 2
        assert vars(model) == plain
    replay(driver, looking, example=1)
    assert during == [0, 0, 0, 1]


def test_buffers_that_the_call_leaves_alone_stay_where_they_are() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.rand(4))

        def forward(self, x: torch.Tensor) -> int:
            assert isinstance(self.scale, torch.Tensor)
            return self.scale.data_ptr()

    with Watched() as seen, torch.no_grad():
        model = Norm().eval()
        address = model(X)
    driver = seen.workload.drivers[0]
    replay(driver)
    assert replay(driver) == address


def test_modes_are_those_of_the_call() -> None:
    class Telling(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
            modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
            return *modes, (x @ x.T).dtype, torch.ones(1).device

    with Watched() as seen:
        model = Telling().eval()
        told = [model(X)]
        with torch.inference_mode():
            told.append(model(X))
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            told.append(model(X))
        torch.set_default_dtype(torch.float64)
        try:
            told.append(model(X))
        finally:
            torch.set_default_dtype(torch.float32)
    assert [replay(driver) for driver in seen.workload.drivers] == told
    assert told[2][3:] == (torch.bfloat16, torch.device("meta"))
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32


def test_inputs_are_fresh_every_time() -> None:
    class Overwriting(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[float, bool]:
            x += 1
            return float(x.sum()), x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()

    with Watched() as seen, torch.no_grad():
        base = X.clone()
        expected = Overwriting().eval()(base[:1], base.T)
    driver = seen.workload.drivers[0]
    assert [replay(driver) for _ in range(3)] == [expected] * 3
    assert expected[1]


def test_an_exception_leaves_the_model_as_it_was() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        model(X)

    @contextmanager
    def breaking() -> Any:
        model.calls.add_(40)
        raise ArithmeticError
        yield

    with pytest.raises(ArithmeticError):
        replay(seen.workload.drivers[0], breaking)
    assert int(model.calls) == 1


def test_training_flags_are_those_of_the_call() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        model(X)
        model.train()
    flags: list[bool] = []
    model.register_forward_hook(lambda module, args, result: flags.append(module.training))
    replay(seen.workload.drivers[0])
    assert flags == [False]
    assert model.training


def test_without_inputs_there_is_a_reason() -> None:
    with Watched() as seen:
        Echo()(X)
    with pytest.raises(NotRecorded, match=r"model\.eval\(\)"):
        replay(seen.workload.drivers[0])


def test_what_a_module_keeps_and_cannot_be_copied_stays() -> None:
    class Guarded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.count = threading.Lock(), 0

        def forward(self, x: torch.Tensor) -> int:
            with self.lock:
                self.count += 1
                return self.count

    with Watched() as seen, torch.no_grad():
        model = Guarded().eval()
        lock = model.lock
        model(X)
    assert [replay(seen.workload.drivers[0]) for _ in range(3)] == [1, 1, 1]
    assert (model.lock, model.count) == (lock, 1)
