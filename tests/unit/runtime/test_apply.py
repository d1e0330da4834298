import copy
import io
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_models import DOUBLE, Attention, Cache, Scale, Stack, patched, spec
from torch import nn

from llm4llm.runtime.apply import apply
from llm4llm.runtime.refusal import PatchFailed, Refused


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def site(handle: Any, at: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = handle.status()["sites"][at]
    return found


def test_a_call_inside_the_domain_runs_the_patch_and_one_outside_the_original(tmp_path: Path) -> None:
    module, x = Scale(), torch.randn(2, 8)
    plain = module(x)
    handle = patched(tmp_path, module, x)
    assert torch.equal(module(x), 2 * plain)
    assert torch.equal(module(torch.cat([x, x])), torch.cat([plain, plain]))
    assert module(x.double()).dtype == torch.float64
    assert site(handle) | {"path": ""} == {
        "patch": "cand_a",
        "path": "",
        "hits": 1,
        "fallbacks": 2,
        "fallback_reasons": {"shape": 1, "dtype": 1},
        "disabled": None,
    }


def test_removing_restores_everything(tmp_path: Path) -> None:
    module, x = Scale(), torch.randn(2, 8)
    module.note = "kept"
    module.register_forward_hook(lambda *_: None)
    keys, hooks, text, out = list(vars(module)), dict(module._forward_hooks), repr(module), module(x)
    handle = patched(tmp_path, module, x)
    assert repr(module) == text
    assert list(module.state_dict()) == ["weight"]
    handle.disable()
    assert list(vars(module)) == keys
    handle.enable()
    handle.enable()
    handle.remove()
    handle.remove()
    assert list(vars(module)) == keys
    assert dict(module._forward_hooks) == hooks
    assert repr(module) == text
    assert torch.equal(module(x), out)


def test_a_forward_of_the_users_own_is_wrapped_and_put_back_in_its_place(tmp_path: Path) -> None:
    module, x = Scale(), torch.ones(2, 8)
    own = lambda x: x - 1  # noqa: E731
    module.forward = own  # type: ignore[assignment]
    module.later = 1
    keys = list(vars(module))
    handle = patched(tmp_path, module, x)
    assert torch.equal(module(x), 2 * x * module.weight)
    assert torch.equal(module(x[:1]), x[:1] - 1)
    handle.remove()
    assert module.forward is own
    assert list(vars(module)) == keys


def test_a_device_hook_around_forward_still_fires(tmp_path: Path) -> None:
    hooks = pytest.importorskip("accelerate.hooks")

    class Counting(hooks.ModelHook):  # type: ignore[misc,name-defined]
        calls = 0

        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return args, kwargs

    module, x, hook = Scale(), torch.randn(2, 8), Counting()
    hooks.add_hook_to_module(module, hook)
    before = dict(vars(module))
    handle = patched(tmp_path, module, x)
    assert torch.equal(module(x), 2 * x * module.weight)
    assert hook.calls == 1
    twin = copy.deepcopy(module)
    twin.weight.mul_(3)
    assert torch.equal(twin(x), x * twin.weight)
    handle.remove()
    assert list(vars(module).items()) == list(before.items())


def test_a_hook_that_was_put_around_a_patch_survives_its_removal(tmp_path: Path) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    module, x = Scale(), torch.randn(2, 8)
    handle = patched(tmp_path, module, x)
    hooks.add_hook_to_module(module, hooks.ModelHook())
    assert torch.equal(module(x), 2 * x * module.weight)
    handle.remove()
    assert torch.equal(module(x), x * module.weight)
    hooks.remove_hook_from_module(module)
    assert torch.equal(module(x), x * module.weight)


@pytest.mark.parametrize("carry", ["deepcopy", "pickle", "save", "replicate"])
def test_copies_go_without_the_patch_and_use_their_own_weights(tmp_path: Path, carry: str) -> None:
    module, x = Scale(), torch.randn(2, 8)
    patched(tmp_path, module, x)
    if carry == "deepcopy":
        twin = copy.deepcopy(module)
    elif carry == "pickle":
        twin = pickle.loads(pickle.dumps(module))
    elif carry == "save":
        buffer = io.BytesIO()
        torch.save(module, buffer)
        assert b"llm4llm.runtime" not in buffer.getvalue()
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    else:
        twin = module._replicate_for_data_parallel()
        twin._parameters["weight"] = module.weight.clone()
        assert list(vars(twin)) == [*vars(Scale()), "_is_replica"]
    twin.weight.mul_(3)
    assert torch.equal(twin(x), x * twin.weight)
    assert torch.equal(copy.deepcopy(twin)(x), twin(x))
    assert torch.equal(module(x), 2 * x * module.weight)


def test_a_patched_model_is_freed_when_it_is_dropped(tmp_path: Path) -> None:
    import gc
    import weakref

    module = Scale()
    handle = patched(tmp_path, module, torch.randn(2, 8))
    gone = weakref.ref(module)
    gc.disable()
    try:
        del module
        assert gone() is None
    finally:
        gc.enable()
    handle.remove()


def test_changed_weights_run_the_original(tmp_path: Path) -> None:
    x = torch.randn(2, 8)
    changes = [
        lambda module: module.weight.mul_(2),
        lambda module: module.load_state_dict({"weight": torch.ones(8)}),
        lambda module: module.load_state_dict({"weight": torch.ones(8)}, assign=True),
        lambda module: setattr(module, "weight", nn.Parameter(torch.ones(8))),
        lambda module: module.to(torch.float64).to(torch.float32),
    ]
    for change in changes:
        module = Scale()
        handle = patched(tmp_path, module, x)
        module(x)
        change(module)
        assert torch.equal(module(x), x * module.weight)
        assert site(handle)["fallback_reasons"] == {"weights_changed": 1}


def test_buffers_that_prepare_read_are_weights_and_others_are_working_memory(tmp_path: Path) -> None:
    class Buffered(Scale):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("read", torch.ones(8))
            self.register_buffer("work", torch.zeros(8))

    source = DOUBLE.replace("module.weight.detach()", "(module.weight * module.read)")
    module, x = Buffered(), torch.randn(2, 8)
    handle = patched(tmp_path, module, x, source)
    module.work.add_(1)
    module.work = torch.ones(8)
    module(x)
    module.read.add_(1)
    module(x)
    assert (site(handle)["hits"], site(handle)["fallback_reasons"]) == (1, {"weights_changed": 1})


def test_gradients_and_training_run_the_original(tmp_path: Path) -> None:
    module, x = Scale().eval(), torch.randn(2, 8)
    handle = patched(tmp_path, module, x)
    with torch.enable_grad():
        assert module(x).requires_grad
    module.train()
    module(x)
    assert site(handle)["fallback_reasons"] == {"grad_enabled": 1, "training": 1}


def test_several_patches_share_a_module(tmp_path: Path) -> None:
    module = Scale()
    row, rows = torch.randn(1, 8), torch.randn(5, 8)
    one = spec(tmp_path, module, [((row,), {})], name="decode")
    other = spec(tmp_path, module, [((rows,), {})], DOUBLE.replace("2 * x", "3 * x"), name="prefill")
    handle = apply(module, [one, other])
    assert torch.equal(module(row), 2 * row * module.weight)
    assert torch.equal(module(rows), 3 * rows * module.weight)
    module(torch.randn(9, 8))
    assert [(one["patch"], one["hits"], one["fallbacks"]) for one in handle.status()["sites"]] == [("decode", 1, 1), ("prefill", 1, 1)]


def test_nested_modules_may_both_be_patched(tmp_path: Path) -> None:
    model, x = Stack(), torch.randn(1, 3, 8)
    plain = model(x)
    norm = spec(tmp_path, model.norm, [((x,), {})], paths=("norm",))
    source = "def forward(module, state, x):\n    return type(module).forward(module, x) + 1\n"
    whole = spec(tmp_path, model, [((x,), {})], source, name="cand_b")
    handle = apply(model, [norm, whole])
    assert torch.allclose(model(x), 2 * plain + 1)
    assert [one["hits"] for one in handle.status()["sites"]] == [1, 1]


def test_a_candidate_that_calls_the_patched_forward_reaches_the_original(tmp_path: Path) -> None:
    module, x = Scale(), torch.randn(2, 8)
    handle = patched(tmp_path, module, x, "def forward(module, state, x):\n    return module(x) + 1\n")
    assert torch.equal(module(x), x * module.weight + 1)
    assert site(handle)["fallback_reasons"] == {"reentrant": 1}


def test_a_candidate_may_decline(tmp_path: Path) -> None:
    module, x = Scale(), torch.randn(2, 8)
    source = DOUBLE + "\ndef accepts(module, state, x):\n    return bool(x.stride(0) > 100)\n"
    handle = patched(tmp_path, module, x, source)
    module(x)
    assert site(handle)["fallback_reasons"] == {"declined": 1}


def test_an_exception_falls_back_and_disables_the_patch_everywhere(tmp_path: Path) -> None:
    model, x = nn.ModuleList([Scale(), Scale()]), torch.randn(2, 8)
    source = "def forward(module, state, x):\n    raise ZeroDivisionError('on purpose')\n"
    handle = apply(model, [spec(tmp_path, model[0], [((x,), {})], source, paths=("0", "1"))])
    assert torch.equal(model[0](x), x * model[0].weight)
    assert torch.equal(model[1](x), x * model[1].weight)
    assert site(handle)["fallback_reasons"] == {"exception": 1}
    assert site(handle, 1)["fallback_reasons"] == {"disabled": 1}
    assert "on purpose" in site(handle)["disabled"]


HALFWAY = """
CALLS = []

def forward(module, state, hidden_states, cache=None):
    CALLS.append(1)
    if FAIL_BEFORE:
        raise RuntimeError('before')
    cache.update(module.layer_idx, module.proj(hidden_states))
    if len(CALLS) > GOOD:
        raise RuntimeError('halfway')
    return hidden_states
"""


def attention_call(layer: int = 0) -> tuple[Cache, torch.Tensor]:
    cache = Cache()
    cache.update(layer, torch.ones(1, 2, 8))
    return cache, torch.ones(1, 1, 8)


def test_a_failure_of_the_first_call_is_undone_before_the_original_runs(tmp_path: Path) -> None:
    module, twin = Attention(0), Attention(0)
    twin.load_state_dict(module.state_dict())
    (cache, x), (other, _) = attention_call(), attention_call()
    source = HALFWAY.replace("FAIL_BEFORE", "False").replace("GOOD", "0")
    handle = apply(module, [spec(tmp_path, module, [((x,), {"cache": cache})], source, effects=True)])
    assert torch.equal(module(x, cache=cache), twin(x, cache=other))
    assert torch.equal(cache.layers[0].keys, other.layers[0].keys)
    assert site(handle)["fallback_reasons"] == {"exception": 1}


def test_a_later_failure_that_left_its_mark_is_an_error_that_names_the_patch(tmp_path: Path) -> None:
    module, (cache, x) = Attention(0), attention_call()
    source = HALFWAY.replace("FAIL_BEFORE", "False").replace("GOOD", "1")
    handle = apply(module, [spec(tmp_path, module, [((x,), {"cache": cache})], source, effects=True)])
    module(x, cache=cache)
    with pytest.raises(PatchFailed, match=r"cand_a at the root raised RuntimeError: halfway"):
        module(x, cache=cache)
    module(x, cache=cache)
    assert site(handle)["fallback_reasons"] == {"exception": 1, "disabled": 1}


def test_a_later_failure_without_a_mark_falls_back(tmp_path: Path) -> None:
    module, (cache, x) = Attention(0), attention_call()
    source = HALFWAY.replace("FAIL_BEFORE", "len(CALLS) > 1").replace("GOOD", "9")
    handle = apply(module, [spec(tmp_path, module, [((x,), {"cache": cache})], source, effects=True)])
    module(x, cache=cache)
    module(x, cache=cache)
    assert cache.layers[0].keys is not None
    assert cache.layers[0].keys.shape[1] == 4
    assert (site(handle)["hits"], site(handle)["fallback_reasons"]) == (1, {"exception": 1})


def test_threads_count_every_call_once(tmp_path: Path) -> None:
    module, x = Scale(), torch.randn(2, 8)
    handle = patched(tmp_path, module, x)
    wrong: list[int] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(200):
                if not torch.equal(module(x), 2 * x * module.weight):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (site(handle)["hits"], site(handle)["fallbacks"]) == (800, 0)


def test_compiled_and_traced_code_takes_the_original(tmp_path: Path) -> None:
    module, x = Scale(), torch.randn(2, 8)
    handle = patched(tmp_path, module, x)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), x * module.weight)
    traced = torch.jit.trace(module, (x,), check_trace=False)
    assert torch.equal(traced(x), x * module.weight)
    assert (site(handle)["hits"], site(handle)["fallbacks"]) == (0, 0)
    torch._dynamo.reset()


def test_the_parameters_of_forward_stay_visible(tmp_path: Path) -> None:
    import inspect

    module = Attention(0)
    x = torch.ones(1, 1, 8)
    apply(module, [spec(tmp_path, module, [((x,), {})], "def forward(module, state, *args, **kwargs): ...\n")])
    assert list(inspect.signature(module.forward).parameters) == ["hidden_states", "mask", "cache"]


def test_refusals_leave_the_model_untouched(tmp_path: Path) -> None:
    model, x = Stack(), torch.randn(1, 3, 8)
    good = spec(tmp_path, model.norm, [((x,), {})], paths=("norm",))
    bad = [
        ("no_such_module", spec(tmp_path, model.norm, [((x,), {})], paths=("norms",))),
        ("other_module", spec(tmp_path, model.norm, [((x,), {})], paths=("norm",), family="0" * 64)),
        ("candidate_altered", spec(tmp_path, model.norm, [((x,), {})], paths=("norm",), sha256="0" * 64)),
        ("candidate_contract", spec(tmp_path, model.norm, [((x,), {})], "x = 1\n", paths=("norm",))),
        (
            "prepare_changed_module",
            spec(tmp_path, model.norm, [((x,), {})], "def prepare(m):\n    m.z = 1\n\n\ndef forward(m, s, x): ...\n", paths=("norm",)),
        ),
    ]
    for code, broken in bad:
        with pytest.raises(Refused) as refused:
            apply(model, [good, broken])
        assert refused.value.code == code
        assert "forward" not in vars(model.norm)
    handle = apply(model, [good])
    with pytest.raises(Refused, match="already"):
        apply(model, [good])
    handle.remove()
    broken = spec(
        tmp_path, model.norm, [((x,), {})], "def prepare(m):\n    raise OSError('no')\n\n\ndef forward(m, s, x): ...\n", paths=("norm",)
    )
    with pytest.raises(OSError, match="no"):
        apply(model, [good, broken])
    assert "forward" not in vars(model.norm)
    with pytest.raises(Refused, match="not in memory"):
        apply(Scale().to("meta"), [spec(tmp_path, Scale(), [((x,), {})])])


def test_state_that_was_prepared_in_inference_mode_can_be_written_without_it(tmp_path: Path) -> None:
    module, x = Scale(), torch.randn(2, 8)
    source = "def prepare(module):\n    return module.weight * 1\n\ndef forward(module, state, x):\n    return x * state.add_(1)\n"
    one = spec(tmp_path, module, [((x,), {})], source)
    with torch.inference_mode():
        handle = apply(module, [one])
    module(x)
    assert site(handle)["hits"] == 1


def test_equal_files_load_once_and_equal_names_do_not_mix(tmp_path: Path) -> None:
    from llm4llm.runtime.candidate import load_candidate

    folders = [tmp_path / name for name in "abc"]
    for folder, source in zip(
        folders, ("def forward(): return 1\n", "def forward(): return 2\n", "def forward(): return 1\n"), strict=True
    ):
        folder.mkdir()
        (folder / "candidate.py").write_text(source)
    one, two, again = (load_candidate(folder / "candidate.py") for folder in folders)
    assert (one.forward(), two.forward()) == (1, 2)
    assert again is one
    assert not list(folders[0].rglob("__pycache__"))
