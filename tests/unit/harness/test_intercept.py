"""What counts as a driver call, and that the script does not notice being watched."""

import copy
import inspect
import threading
import traceback
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from watching import Drawer, Echo, Watched, echo

from llm4llm.harness import intercept
from llm4llm.harness.traces import hidden, strip

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
X = torch.arange(8.0).reshape(2, 4)


def test_nested_modules_and_equal_calls_are_one_driver() -> None:
    with Watched() as seen, torch.no_grad():
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU())).eval()
        for batch in (2, 2, 5, 2):
            model(torch.ones(batch, 4))
    assert seen.drivers() == [("forward", 3, None), ("forward", 1, None)]
    assert [root.id for root in seen.workload.roots] == ["r0"]
    assert [driver.id for driver in seen.workload.drivers] == ["d0", "d1"]
    assert seen.workload.roots[0].fingerprint


def test_a_method_that_runs_the_model_is_the_driver() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        model.note_down("nothing to see")
        model.generate(X, steps=2)
        model.generate(X, steps=2)
    assert seen.drivers() == [("generate", 2, None)]
    assert len(seen.workload.drivers[0].examples) == 2


def test_signatures_tell_modes_scalars_and_layouts_apart() -> None:
    with Watched() as seen:
        model = nn.Conv2d(3, 2, 1).eval()
        image = torch.ones(1, 3, 4, 4)
        model(image)
        with torch.no_grad():
            model(image)
            model(image.contiguous(memory_format=torch.channels_last))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model(image)
    signatures = [driver.signature for driver in seen.workload.drivers]
    assert signatures[0].endswith("| grad")
    assert len(set(signatures)) == 4
    assert "autocast cpu bfloat16" in signatures[3]


def test_inputs_are_copied_before_the_call() -> None:
    class Overwriting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.zero_()
            return x

    with Watched() as seen, torch.no_grad():
        Overwriting().eval()(X.clone())
    example = seen.workload.drivers[0].example
    assert example is not None
    assert torch.equal(example.args[0], X)


def test_a_cache_object_makes_a_loop() -> None:
    with Watched() as seen, torch.no_grad():
        model, drawer = echo(), Drawer()
        for _ in range(4):
            model(X, drawer)
        model(X)
    assert seen.drivers() == [("loop", 1, None), ("forward", 1, None)]


def test_tuple_caches_make_a_loop() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        past: tuple[torch.Tensor, ...] = (X,)
        for _ in range(3):
            _, past = model(X, past=past)
    assert seen.drivers() == [("loop", 1, None)]


def test_caches_written_in_inference_mode_make_a_loop() -> None:
    class Summing(nn.Module):
        def forward(self, x: torch.Tensor, total: list[torch.Tensor]) -> torch.Tensor:
            total[0].add_(x)
            return total[0] * 2

    with Watched() as seen, torch.inference_mode():
        model, total = Summing().eval(), [torch.zeros(2, 4)]
        for step in range(3):
            model(X + step, total)
    assert seen.drivers() == [("loop", 1, None)]


def test_a_cache_that_the_script_changed_begins_a_new_loop() -> None:
    with Watched() as seen, torch.no_grad():
        model, drawer = echo(), Drawer()
        for turn in range(2):
            for _ in range(3):
                model(X, drawer)
            if turn == 0:
                drawer.kept[:] = drawer.kept[-1:]
    assert seen.drivers() == [("loop", 1, None), ("loop", 1, None)]


def test_an_unchanged_object_makes_no_loop() -> None:
    batch = types.SimpleNamespace(x=X)

    class Reading(nn.Module):
        def forward(self, batch: Any) -> torch.Tensor:
            return batch.x * 2  # type: ignore[no-any-return]

    with Watched() as seen, torch.no_grad():
        model = Reading().eval()
        for _ in range(5):
            model(batch)
    assert seen.drivers() == [("forward", 5, None)]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: nn.Linear(4, 4), "training_mode"),
        (lambda: torch.jit.script(nn.Linear(4, 4).eval()), "scripted"),
        (lambda: torch.jit.trace(nn.Linear(4, 4).eval(), X), "scripted"),
        (lambda: torch.jit.freeze(torch.jit.trace(nn.Linear(4, 4).eval(), X)), "scripted"),
        (lambda: torch.compile(nn.Linear(4, 4).eval(), backend="eager"), "compiled"),
        (lambda: nn.DataParallel(nn.Linear(4, 4)).eval(), "data_parallel"),
        (lambda: nn.Linear(4, 4, device="meta").eval(), "offloaded"),
    ],
    ids=["training", "scripted", "traced", "frozen", "compiled", "data parallel", "meta"],
)
def test_refusals(make: Any, code: str) -> None:
    with Watched() as seen, torch.no_grad():
        model = make()
        model(X.to("meta") if code == "offloaded" else X)
    assert seen.drivers() == [("forward", 1, code)]
    assert not seen.workload.drivers[0].examples


def test_eval_inside_a_method_is_no_refusal() -> None:
    class Tidy(Echo):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            self.eval()
            return self(x)  # type: ignore[no-any-return]

    with Watched() as seen, torch.no_grad():
        Tidy().encode(X)
    assert seen.drivers() == [("encode", 1, None)]


def test_what_cannot_be_copied_is_refused_and_runs() -> None:
    class Locked(nn.Module):
        def forward(self, x: torch.Tensor, lock: Any) -> torch.Tensor:
            with lock:
                return x + 1

    with Watched() as seen, torch.no_grad():
        assert torch.equal(Locked().eval()(X, threading.Lock()), X + 1)
    assert seen.drivers() == [("forward", 1, "not_replayable")]


def test_a_method_that_cannot_be_copied_is_seen_forward_by_forward() -> None:
    class Streaming(Echo):
        def generate(self, x: torch.Tensor, lock: Any = None) -> torch.Tensor:  # type: ignore[override]
            drawer = Drawer()
            for _ in range(3):
                x = self(x, drawer)
            return x

    with Watched() as seen, torch.no_grad():
        Streaming().eval().generate(X, threading.Lock())
    assert seen.drivers() == [("loop", 1, None)]
    assert "not_replayable" in seen.notes()


def test_forwards_called_directly_are_learned() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        for _ in range(3):
            model.forward(X)
    assert seen.drivers() == [("forward", 2, None)]
    assert seen.workload.roots[0].module is model
    assert "first_call_missed" in seen.notes()


def test_a_generator_method_leaves_its_forwards_to_themselves() -> None:
    class Lazy(Echo):
        def generate(self, x: torch.Tensor) -> Any:  # type: ignore[override]
            for _ in range(3):
                yield self(x)

    with Watched() as seen, torch.no_grad():
        list(Lazy().eval().generate(X))
    assert seen.drivers() == [("forward", 3, None)]


def test_unpickled_and_copied_models_are_watched() -> None:
    model = echo()
    with Watched() as seen, torch.no_grad():
        copy.deepcopy(model).generate(X)
    assert seen.drivers() == [("generate", 1, None)]


def test_a_call_that_raises_passes_and_is_not_counted() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        model(X)
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 3))
        with pytest.raises(KeyboardInterrupt):
            nn.Sequential(_Interrupting()).eval()(X)
        model(X)
    assert seen.drivers() == [("forward", 2, None)]
    assert "call_not_finished" in seen.notes()


class _Interrupting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt


def test_a_fault_of_ours_never_reaches_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm4llm.harness.recording.call_signature", lambda *_: 1 / 0)
    with Watched() as seen, torch.no_grad():
        assert echo()(X).shape == (2, 4)
        assert echo().generate(X).shape == (2, 4)
    assert seen.drivers() == []
    assert seen.notes() == {"recording_failed"}


def test_classes_are_left_as_they_were() -> None:
    before = dict(vars(nn.Module)), dict(vars(Echo)), torch.jit.script, torch.jit.trace
    with Watched(), torch.no_grad():
        echo().generate(X)
        assert vars(Echo)["generate"] is not before[1]["generate"]
    assert (dict(vars(nn.Module)), dict(vars(Echo)), torch.jit.script, torch.jit.trace) == before
    assert list(vars(Echo)) == list(before[1])


def test_wrapped_methods_look_like_themselves() -> None:
    signature = inspect.signature(Echo.generate)
    with Watched():
        model = echo()
        assert inspect.signature(type(model).generate) == signature
        assert "def generate" in inspect.getsource(model.generate)
        assert model.generate.__name__ == "generate"
        assert inspect.signature(nn.Module.__call__).parameters.keys() == {"self", "args", "kwargs"}


def test_a_script_can_compile_methods_of_its_own_class() -> None:
    class Halving(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.half(x)

        def half(self, x: torch.Tensor) -> torch.Tensor:
            return halved(x)

    with Watched() as seen, torch.no_grad():
        Halving().eval()(X)
        scripted = torch.jit.script(Halving().eval())
        assert torch.equal(scripted(X), X / 2)
        assert torch.equal(Halving().eval()(X), X / 2)
    assert [driver.refusal.code if driver.refusal else None for driver in seen.workload.drivers] == [None, "scripted", None]


def halved(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


def test_compiled_functions_see_no_wrapper() -> None:
    with Watched() as seen, torch.no_grad():
        model = echo()
        compiled = torch.compile(lambda x: model.mix(model.mix(x)), backend="eager", fullgraph=True)
        assert torch.allclose(compiled(X), model.mix.forward(model.mix.forward(X)))
        assert torch.allclose(compiled(X), compiled(X))
    assert seen.drivers() == []
    assert seen.notes() <= {"first_call_missed"}


def test_other_threads_pass_while_one_is_recorded() -> None:
    class Forking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            results: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda: results.append(self.inner(x)))
            thread.start()
            thread.join()
            return results[0]

    with Watched() as seen, torch.no_grad():
        Forking().eval()(X)
    assert seen.drivers() == [("forward", 1, None)]


def test_outputs_are_not_kept_alive() -> None:
    with Watched(), torch.no_grad():
        model, drawer = echo(), Drawer()
        result = model(X, drawer)
        reference = weakref.ref(result)
        del result
        assert reference() is None


def test_own_frames_can_be_hidden() -> None:
    own = str(Path(intercept.__file__).parent)
    with Watched(), torch.no_grad():
        try:
            nn.Sequential(nn.Linear(3, 3)).eval()(X)
        except RuntimeError as raised:
            with hidden():
                shown, stack = traceback.format_exc(), "".join(traceback.format_stack())
            error = raised
    assert own not in shown
    assert stack.count(__file__) >= 1
    assert own in "".join(traceback.format_exception(error))
    assert own not in "".join(traceback.format_exception(strip(error)))
