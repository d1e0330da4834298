import functools
import inspect
import threading
import time
from typing import Any

import pytest
import torch
from recorded import recorded, rooted
from torch import nn

from llm4llm.harness.instrument import instrumented


class Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, *, bias: float = 0.0) -> torch.Tensor:
        """Doc of the leaf."""
        return x * self.scale + bias


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Leaf(), Leaf()
        self.silent = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x, bias=1.0)
        return self.second.forward(x) @ self.silent.weight


def passing(path: str, module: nn.Module, phase: str, original: Any, args: Any, kwargs: Any) -> Any:
    return original(*args, **kwargs)


def portrait(model: nn.Module) -> list[tuple[str, list[tuple[str, int]], str]]:
    parts = []
    for path, part in model.named_modules():
        hooks = repr([(key, list(value)) for key, value in vars(part).items() if "hooks" in key])
        parts.append((path, [(key, id(value)) for key, value in vars(part).items()], hooks))
    return parts


def test_every_call_is_seen_with_keywords_and_direct_forwards() -> None:
    model, seen = Net(), []

    def watch(path: str, module: nn.Module, phase: str, original: Any, args: Any, kwargs: Any) -> Any:
        seen.append((path, type(module).__name__, phase, sorted(kwargs)))
        return original(*args, **kwargs)

    x = torch.randn(2, 4)
    before = model(x)
    with instrumented(rooted(model), watch, driver=recorded(model, "forward", x)) as instrument:
        assert torch.equal(model(x), before)
    assert seen == [("", "Net", "forward", []), ("first", "Leaf", "forward", ["bias"]), ("second", "Leaf", "forward", [])]
    assert instrument.paths == ["", "first", "second", "silent"]
    assert instrument.phase is None


def test_restored_exactly_also_after_an_exception() -> None:
    model = Net()
    model.first.register_forward_hook(lambda *_: None)
    before, text = portrait(model), repr(model)

    def broken(path: str, module: nn.Module, phase: str, original: Any, args: Any, kwargs: Any) -> Any:
        if path == "second":
            raise ZeroDivisionError
        return original(*args, **kwargs)

    with pytest.raises(ZeroDivisionError), instrumented(rooted(model), broken):
        model(torch.ones(1, 4))
    assert portrait(model) == before
    assert repr(model) == text


def test_an_existing_instance_forward_is_wrapped_and_put_back_in_its_place() -> None:
    model = Net()
    calls = []

    def moved(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return type(module).forward(module, *args, **kwargs)

    model.first.forward = functools.partial(moved, model.first)  # type: ignore[method-assign]
    model.first.later = 1  # type: ignore[assignment]
    before = portrait(model)
    with instrumented(rooted(model), passing):
        model(torch.ones(1, 4))
    assert calls == [1]
    assert portrait(model) == before


def test_signature_and_name_stay_readable() -> None:
    model = Net()
    with instrumented(rooted(model), passing):
        assert list(inspect.signature(model.first.forward).parameters) == ["x", "bias"]
        assert model.first.forward.__doc__ == "Doc of the leaf."


def test_only_the_wanted_paths_are_watched_but_phases_are_known() -> None:
    model, seen = Net(), []

    def watch(path: str, module: nn.Module, phase: str, original: Any, args: Any, kwargs: Any) -> Any:
        seen.append((path, phase))
        return original(*args, **kwargs)

    driver = recorded(model, "generate", torch.ones(1, 4))
    with instrumented(rooted(model), watch, paths={"second"}, driver=driver):
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))
    assert seen == [("second", "prefill"), ("second", "decode")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_compiled_and_replicated_modules_are_left_alone_and_named() -> None:
    model = nn.Module()
    model.scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    model.compiled = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    model.copied = nn.DataParallel(nn.Linear(2, 2))
    model.plain = nn.Linear(2, 2)
    in_place = nn.Linear(2, 2)
    in_place.compile(backend="eager")
    model.in_place = in_place
    scripted = vars(model.scripted)["forward"]
    with instrumented(rooted(model), passing) as instrument:
        assert vars(model.scripted)["forward"] is scripted
        assert "forward" in vars(model.plain)
        codes = {path: reason.code for path, reason in instrument.refusals.items()}
    assert codes == {"scripted": "scripted", "compiled": "compiled", "copied": "replicated", "in_place": "compiled"}
    assert "compiled._orig_mod.0" not in instrument.paths


def test_a_call_that_is_being_compiled_is_not_watched() -> None:
    model, seen = Net(), []

    def watch(path: str, module: nn.Module, phase: str, original: Any, args: Any, kwargs: Any) -> Any:
        seen.append(path)
        return original(*args, **kwargs)

    with instrumented(rooted(model), watch, paths={"first"}):
        compiled = torch.compile(lambda x: model.first(x) + 1, backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.ones(1, 4)), torch.full((1, 4), 2.0))
    assert seen == []


def test_threads_have_phases_of_their_own() -> None:
    model, inside, go = Net(), threading.Event(), threading.Event()
    seen: dict[str, list[str]] = {}

    def watch(path: str, module: nn.Module, phase: str, original: Any, args: Any, kwargs: Any) -> Any:
        name = threading.current_thread().name
        seen.setdefault(name, []).append(f"{path}:{phase}")
        if name == "slow" and path == "first":
            inside.set()
            assert go.wait(10)
        return original(*args, **kwargs)

    driver = recorded(model, "generate")
    with instrumented(rooted(model), watch, driver=driver):
        slow = threading.Thread(target=lambda: model(torch.ones(1, 4)), name="slow")
        slow.start()
        assert inside.wait(10)
        model.first(torch.ones(1, 4))  # here nothing runs: this is outside the root's forward
        go.set()
        slow.join()
    assert seen["slow"] == [":prefill", "first:prefill", "second:prefill"]
    assert seen["MainThread"] == ["first:encode"]


def test_the_wrapper_is_cheap() -> None:
    class Nothing(nn.Module):
        def forward(self, x: int) -> int:
            return x

    model = nn.Module()
    model.leaf = Nothing()

    def best(call: Any) -> float:
        took = []
        for _ in range(7):
            start = time.perf_counter()
            for _ in range(2000):
                call(1)
            took.append(time.perf_counter() - start)
        return min(took) / 2000

    plain = best(model.leaf)
    with instrumented(rooted(model), passing) as instrument:
        with instrument.pretending("decode"):
            watched = best(model.leaf)
    assert watched - plain < 5e-6
