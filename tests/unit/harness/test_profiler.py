import copy
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import recorded, workload_of
from small_lm import small_lm, tiny_mamba
from torch import nn
from transformers.models.bert import BertConfig, BertModel
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

from llm4llm.harness.arms import portrait
from llm4llm.harness.device_spans import Busy, attribute
from llm4llm.harness.profiler import match, profile
from llm4llm.harness.workload import DriverEntry, Reason, Workload
from llm4llm.schema.profile import ProfileReport


def report(*drivers: DriverEntry, repeats: int = 2, limit: float = 30.0, notes: list[Any] | None = None) -> ProfileReport:
    return profiled(workload_of(*drivers), repeats, limit, notes)


def profiled(workload: Workload, repeats: int = 2, limit: float = 30.0, notes: list[Any] | None = None) -> ProfileReport:
    events: list[Any] = [] if notes is None else notes
    found = ProfileReport.model_validate(profile(workload, {"repeats": repeats, "time_limit_s": limit}, events.append))
    assert sum(spot.self_share for spot in found.hotspots) == pytest.approx(1.0)
    for spot in found.hotspots:
        assert 0.0 <= spot.share <= 1.0
        assert spot.ceiling == pytest.approx(1.0 / (1.0 - spot.share))
    return found


def spots(found: ProfileReport, module_class: str) -> dict[str, Any]:
    return {spot.phase: spot for spot in found.hotspots if spot.module_class == module_class}


@torch.no_grad()
def mamba() -> DriverEntry:
    model = tiny_mamba(16)
    return recorded(model, "generate", torch.randint(1, 64, (1, 48)), max_new_tokens=4, do_sample=False)


def test_hand_written_model() -> None:
    driver = recorded(small_lm(), "generate", torch.randint(0, 40, (1, 400)), 4)
    driver.count = 3
    found = report(driver, repeats=5)
    mixer = spots(found, "SlowMixer")
    assert set(mixer) == {"prefill", "decode"}
    assert mixer["prefill"].calls == 2 * 3
    assert mixer["decode"].calls == 2 * 3 * 3
    assert mixer["prefill"].paths == ("mixers.0", "mixers.1")
    assert mixer["prefill"].share > 0.4
    assert mixer["prefill"].bound == "host"
    assert mixer["prefill"].refusal is None
    assert mixer["prefill"].self_share < mixer["prefill"].share
    root = spots(found, "SmallLM")
    assert root["prefill"].share + root["decode"].share == pytest.approx(1.0, abs=0.01)
    assert {(row.phase, row.root_calls) for row in found.phases} == {("prefill", 3), ("decode", 9)}
    assert found.coverage == 1.0
    assert not found.partial
    assert len(found.end_to_end.samples_ms) == 5


def test_what_can_not_be_told_in_full_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm4llm.harness.profiler.MAX_HOTSPOTS", 3)
    monkeypatch.setattr("llm4llm.harness.profiler.MAX_PATH_CHARACTERS", 20)
    driver = recorded(small_lm(), "generate", torch.randint(0, 40, (1, 20)), 2)
    found = ProfileReport.model_validate(profile(workload_of(driver), {"repeats": 1, "time_limit_s": 30.0}, lambda event: None))
    assert len(found.hotspots) == 3
    assert "left out as the smallest: " in found.method
    mixer = next(spot for spot in found.hotspots if spot.module_class == "SlowMixer")
    assert (len(mixer.paths), mixer.refusal and mixer.refusal.code) == (1, "many_instances")


def test_the_models_are_left_as_they_were() -> None:
    driver = mamba()
    before = portrait(driver.root.module)
    report(driver)
    assert portrait(driver.root.module) == before


def test_children_whose_weights_are_read_are_named_and_their_time_is_the_parents() -> None:
    found = report(mamba())
    mixer, conv = spots(found, "MambaMixer"), spots(found, "Conv1d")
    assert mixer["prefill"].self_host_ms > spots(found, "MambaRMSNorm")["prefill"].host_ms
    assert [spot.refusal.code for spot in conv.values()] == ["never_called"]
    assert next(iter(conv.values())).calls == 0
    assert found.hotspots[-1].calls == 0  # after everything that ran


@torch.no_grad()
def test_decoder_layers_are_one_family_and_ids_are_stable() -> None:
    config = Qwen3Config(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        eos_token_id=None, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).eval()
    ids = torch.randint(1, 64, (1, 7))
    one = report(recorded(model, "generate", ids, max_new_tokens=3, do_sample=False))
    two = report(recorded(copy.deepcopy(model), "generate", ids, max_new_tokens=3, do_sample=False))
    layers = spots(one, "Qwen3DecoderLayer")
    assert layers["decode"].paths == ("model.layers.0", "model.layers.1", "model.layers.2")
    assert layers["decode"].calls == 6
    assert {spot.id for spot in one.hotspots} == {spot.id for spot in two.hotspots}
    norms = [spot for spot in one.hotspots if spot.module_class == "Qwen3RMSNorm" and spot.phase == "decode"]
    assert sorted(len(spot.paths) for spot in norms) == [6, 7]  # per head and per token: other widths


@torch.no_grad()
def test_an_encoder_is_forward_and_an_encoder_decoder_has_encode() -> None:
    torch.manual_seed(0)
    bert = BertModel(BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)).eval()
    found = report(recorded(bert, "forward", torch.randint(1, 64, (2, 9))))
    assert {spot.phase for spot in found.hotspots} == {"forward"}
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0, eos_token_id=None, pad_token_id=0
    )
    t5 = T5ForConditionalGeneration(config).eval()
    found = report(recorded(t5, "generate", torch.randint(1, 64, (1, 9)), max_new_tokens=3, do_sample=False))
    assert set(spots(found, "T5Stack")) == {"encode", "prefill", "decode"}


def test_two_roots_and_a_driver_that_can_not_be_replayed() -> None:
    one = recorded(small_lm(), "generate", torch.randint(0, 40, (1, 32)), 2)
    two = recorded(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), "forward", torch.ones(4, 8))
    lost = recorded(small_lm(), "forward", torch.ones(1, 2, dtype=torch.long))
    lost.refusal = Reason("stream", "its input can be read only once")
    one.wall_ms, two.wall_ms, lost.wall_ms = [60.0], [20.0], [20.0]
    found = report(one, two, lost)
    assert found.coverage == pytest.approx(0.8)
    assert {spot.root for spot in found.hotspots} == {"r0", "r1"}
    linear = spots(found, "Sequential")["forward"]
    assert linear.root == "r1"


def test_a_driver_that_fails_in_replay_is_left_out_with_a_note() -> None:
    class Moody(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("not again")

    notes: list[Any] = []
    found = report(
        recorded(Moody(), "forward", torch.ones(1)), recorded(small_lm(), "forward", torch.ones(1, 3, dtype=torch.long)), notes=notes
    )
    assert found.coverage == pytest.approx(0.5)
    assert "not again" in notes[0]["note"]
    assert "not again" in found.method


def test_nothing_to_replay() -> None:
    found = ProfileReport.model_validate(profile(Workload(), {"repeats": 2, "time_limit_s": 5.0}, lambda _: None))
    assert found.hotspots == ()
    assert found.end_to_end.samples_ms == ()


def test_training_mode_and_compiled_parts_are_refused_and_never_called_zero_time() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)).train()
    assert {spot.refusal.code for spot in report(recorded(model, "forward", torch.ones(2, 8))).hotspots if spot.refusal} == {
        "training_mode"
    }
    compiled = torch.compile(nn.Sequential(nn.Linear(8, 8)).eval(), backend="eager")
    found = report(recorded(compiled, "forward", torch.ones(2, 8)))
    assert [(spot.refusal.code, round(spot.share, 3)) for spot in found.hotspots if spot.refusal] == [("compiled", 1.0)]
    assert "compiled" in found.method


def test_time_is_self_plus_children_and_recursion_counts_once() -> None:
    class Sleepy(nn.Module):
        def __init__(self, inner: nn.Module | None) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.01)
            return self.inner(x) if self.inner is not None else x

    class Same(nn.Module):
        def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
            time.sleep(0.01)
            return self(x, depth - 1) if depth else x

    found = report(recorded(Sleepy(Sleepy(None)), "forward", torch.ones(1)))
    outer, inner = sorted(spots_of(found), key=lambda spot: -spot.host_ms)
    assert outer.host_ms > 19.9
    assert outer.self_host_ms == pytest.approx(outer.host_ms - inner.host_ms, rel=0.05)
    assert inner.host_ms == pytest.approx(inner.self_host_ms)
    root = nn.Sequential(Same())
    found = report(recorded(root, "forward", torch.ones(1)))
    same = spots(found, "Same")["forward"]
    assert same.calls == 3
    assert same.host_ms == pytest.approx(same.self_host_ms, rel=0.05)  # counted three times over it would be twice that
    assert same.host_ms > 29.9


def spots_of(found: ProfileReport) -> list[Any]:
    return [spot for spot in found.hotspots if spot.module_class == "Sleepy"]


def test_match_asks_the_representative_and_survives_bad_seeds(tmp_path: Path) -> None:
    driver = recorded(small_lm(), "generate", torch.randint(0, 40, (1, 8)), 2)
    workload = workload_of(driver)
    found = profiled(workload)
    mixer = spots(found, "SlowMixer")["prefill"].id
    embed = spots(found, "Embedding")["prefill"].id
    shape = "def forward(module, state, *args, **kwargs):\n    return None\n\n\ndef matches(module):\n    "
    files = {
        "fits": shape + "import torch\n    torch.rand(1)\n    module.left_behind = 1\n    return hasattr(module, 'proj')\n",
        "raises": shape + "return module.proj.weight.no_such\n",
        "broken": "def forward(",
        "silent": "def forward(module, state):\n    return None\n",
    }
    seeds = []
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
        seeds.append({"name": name, "path": str(tmp_path / f"{name}.py")})
    before, state = portrait(driver.root.module), torch.get_rng_state()
    answer = match(workload, {"hotspots": [mixer, embed, "h_nothing"], "seeds": seeds})
    assert answer["matches"] == {mixer: ["fits"], embed: [], "h_nothing": []}
    assert set(answer["errors"]) == {"raises", "broken", "silent", "h_nothing"}
    assert portrait(driver.root.module) == before
    assert torch.equal(torch.get_rng_state(), state)


class Event:
    """A raw profiler event as torch gives it."""

    def __init__(self, name: str, device: Any, start: int, duration: int, correlation: int = 0) -> None:
        self._facts = (name, device, start, duration, correlation)

    def name(self) -> str:
        return str(self._facts[0])

    def device_type(self) -> Any:
        return self._facts[1]

    def start_ns(self) -> int:
        return int(self._facts[2])

    def duration_ns(self) -> int:
        return int(self._facts[3])

    def correlation_id(self) -> int:
        return int(self._facts[4])

    def is_user_annotation(self) -> bool:
        return False


def test_kernels_belong_to_the_innermost_call_that_launched_them() -> None:
    cpu, cuda = torch._C._autograd.DeviceType.CPU, torch._C._autograd.DeviceType.CUDA
    events = [
        Event("llm4llm:0:0", cpu, 0, 100),
        Event("llm4llm:0:1", cpu, 10, 30),
        Event("llm4llm:0:0", cuda, 500, 900),  # the annotation's echo on the device is no work
        Event("aten::mm", cpu, 12, 10, 7),
        Event("cudaLaunchKernel", cpu, 15, 2, 7),
        Event("cudaLaunchKernel", cpu, 50, 2, 8),
        Event("cuLaunchKernelEx", cpu, 200, 2, 9),
        Event("mm_kernel", cuda, 600, 2_000_000, 7),
        Event("add_kernel", cuda, 700, 1_000_000, 8),
        Event("late_kernel", cuda, 800, 4_000_000, 9),
        Event("orphan", cuda, 900, 500_000, 77),
    ]
    found: dict[int, Busy] = {}
    lost = attribute(events, [found])
    assert lost == pytest.approx(4.5)
    assert (found[0].inclusive_ms, found[0].self_ms, found[0].kernels) == (pytest.approx(3.0), pytest.approx(1.0), 1)
    assert (found[1].inclusive_ms, found[1].self_ms) == (pytest.approx(2.0), pytest.approx(2.0))
