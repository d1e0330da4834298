from pathlib import Path
from typing import Any

import pytest
import torch
from patching import patch
from recorded import recorded, workload_of
from small_lm import FASTER, FORGETFUL, NEVER, RAISING, SLOWER, UNPREPARED, WRONG, Memory, SmallLM, small_lm, tiny_mamba
from transformers.models.bert import BertConfig, BertModel
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

from llm4llm.harness.agreement import Agreement
from llm4llm.harness.arms import portrait
from llm4llm.harness.evidence import observe
from llm4llm.harness.trial import trial
from llm4llm.harness.workload import Workload

PROMPT = 192


def small(prompt: int = PROMPT, steps: int = 3) -> tuple[SmallLM, Workload]:
    model = small_lm()
    return model, workload_of(recorded(model, "generate", torch.randint(0, 40, (1, prompt)), steps))


def tried(workload: Workload, *patches: dict[str, Any], base: tuple[dict[str, Any], ...] = (), pairs: int = 6) -> dict[str, Any]:
    limits = {"pairs": pairs, "min_pairs": 3, "clear_above": 1e9, "time_limit_s": 20.0}
    return trial(workload, {"patches": list(patches), "base": list(base), **limits})


def failed(result: dict[str, Any]) -> list[str]:
    return [check["name"] for check in result["checks"] if not check["passed"]]


def ratio(result: dict[str, Any]) -> float:
    """Of the fastest samples: other work on the machine can't reach them."""
    return min(result["baseline_ms"]) / min(result["patched_ms"])


def test_a_faster_patch_passes_every_check_and_gains(tmp_path: Path) -> None:
    model, workload = small()
    before = portrait(model)
    made = patch(workload.drivers[0], "SlowMixer", "prefill", FASTER, tmp_path)
    result = tried(workload, made)
    assert failed(result) == []
    assert {check["name"] for check in result["checks"]} >= {"runs", "structure", "tokens", "logits", "state", "restored"}
    assert result["restored"]
    assert len(result["baseline_ms"]) == len(result["patched_ms"]) == 6
    assert ratio(result) > 1.5
    sites = {site["path"]: site for site in result["sites"][made["candidate"]]}
    assert {path: site["hits"] for path, site in sites.items()} == {"mixers.0": 1, "mixers.1": 1}
    assert {site["fallbacks"] for site in sites.values()} == {2}  # the decode steps
    assert portrait(model) == before


def test_counters_are_those_of_the_script(tmp_path: Path) -> None:
    _, workload = small()
    workload.drivers[0].count = 5
    made = patch(workload.drivers[0], "SlowMixer", "prefill", FASTER, tmp_path)
    result = tried(workload, made, pairs=3)
    assert [site["hits"] for site in result["sites"][made["candidate"]]] == [5, 5]


@pytest.mark.parametrize(
    ("source", "check"),
    [(WRONG, "logits"), (FORGETFUL, "logits"), (UNPREPARED, "applies")],
    ids=["wrong values", "state not written", "prepare raises"],
)
def test_a_wrong_patch_is_found_out_and_not_timed(source: str, check: str, tmp_path: Path) -> None:
    model, workload = small()
    before = portrait(model)
    result = tried(workload, patch(workload.drivers[0], "SlowMixer", "prefill", source, tmp_path))
    assert check in failed(result)
    assert result["baseline_ms"] == []
    assert result["restored"]
    assert portrait(model) == before


def test_a_wrong_state_is_found_out_though_the_output_is_right(tmp_path: Path) -> None:
    model = small_lm()
    ids = torch.randint(0, 40, (1, 24))
    with torch.no_grad():
        workload = workload_of(recorded(model, "forward", ids, Memory(2)))
    result = tried(workload, patch(workload.drivers[0], "SlowMixer", "prefill", FORGETFUL, tmp_path))
    assert failed(result) == ["state"]


def test_a_patch_that_never_runs_is_not_timed(tmp_path: Path) -> None:
    _, workload = small()
    made = patch(workload.drivers[0], "SlowMixer", "prefill", NEVER, tmp_path)
    result = tried(workload, made)
    assert failed(result) == []
    assert sum(site["hits"] for site in result["sites"][made["candidate"]]) == 0
    assert result["sites"][made["candidate"]][0]["fallback_reasons"]["declined"] == 1
    assert result["baseline_ms"] == []


def test_a_raising_patch_is_named_though_the_fallback_gave_the_right_result(tmp_path: Path) -> None:
    _, workload = small()
    made = patch(workload.drivers[0], "SlowMixer", "prefill", RAISING, tmp_path)
    result = tried(workload, made)
    assert failed(result) == ["exceptions"]
    assert "ValueError" in next(check["detail"] for check in result["checks"] if check["name"] == "exceptions")
    assert result["baseline_ms"] == []
    assert result["restored"]


def test_a_slower_patch_is_timed_as_slower(tmp_path: Path) -> None:
    _, workload = small(prompt=64)
    result = tried(workload, patch(workload.drivers[0], "SlowMixer", "prefill", SLOWER, tmp_path))
    assert failed(result) == []
    assert ratio(result) < 0.95


def test_the_base_is_on_in_both_arms(tmp_path: Path) -> None:
    _, workload = small()
    base = patch(workload.drivers[0], "SlowMixer", "prefill", FASTER, tmp_path)
    other = (
        "import torch\n\n\ndef forward(module, state, x):\n    return torch.nn.functional.rms_norm(x, x.shape[-1:], module.weight, 1e-6)\n"
    )
    new = patch(workload.drivers[0], "Scale", "prefill", other, tmp_path)
    result = tried(workload, new, base=(base,), pairs=8)
    assert failed(result) == []
    assert set(result["sites"]) == {base["candidate"], new["candidate"]}
    assert all(sum(site["hits"] for site in sites) == 2 for sites in result["sites"].values())
    assert 0.6 < ratio(result) < 1.6  # the base alone is worth far more than this
    alone = tried(workload, base, pairs=4)
    assert min(result["baseline_ms"]) < 0.8 * min(alone["baseline_ms"])


def test_a_patch_for_another_module_is_refused_with_the_model_untouched(tmp_path: Path) -> None:
    model, workload = small()
    before = portrait(model)
    made = patch(workload.drivers[0], "SlowMixer", "prefill", FASTER, tmp_path)
    result = tried(workload, {**made, "paths": ["norms.0"]})
    assert failed(result) == ["applies"]
    assert result["restored"]
    assert portrait(model) == before


def test_time_limit_still_gives_the_least_number_of_pairs(tmp_path: Path) -> None:
    _, workload = small(prompt=48)
    made = patch(workload.drivers[0], "SlowMixer", "prefill", FASTER, tmp_path)
    result = trial(workload, {"patches": [made], "pairs": 1000, "min_pairs": 4, "clear_above": 1e9, "time_limit_s": 0.6})
    assert 4 <= len(result["baseline_ms"]) < 400


def test_a_token_may_differ_only_where_the_model_was_undecided() -> None:
    _, workload = small(prompt=8)
    driver = workload.drivers[0]
    once, again, patched = observe(driver), observe(driver), observe(driver)
    agreed = {finding.name: finding.passed for finding in Agreement(once, again, None, patched).findings()}
    assert agreed == {"structure": True, "tokens": True, "logits": True, "outputs": True, "state": True}
    first, second = (int(index) for index in once.logits[1][0].topk(2).indices)
    tokens = patched.result[""].value
    assert int(tokens[0, 9]) == first

    tokens[0, 9] = second  # a clear winner lost
    clear = {finding.name: finding for finding in Agreement(once, again, None, patched).findings()}
    assert not clear["tokens"].passed
    assert "clear" in clear["tokens"].detail

    for run in (once, again, patched):  # now a tie up to rounding, broken the other way
        run.logits[1][0, first] = run.logits[1][0, second] + 1e-7
    patched.logits[1][0, second] += 1e-6
    tied = {finding.name: finding for finding in Agreement(once, again, None, patched).findings()}
    assert tied["tokens"].passed, tied["tokens"].detail
    assert "margin" in tied["tokens"].detail
    assert "outputs" not in tied  # what followed is another text

    patched.logits[1][0, second] += 0.5  # a tie does not excuse logits that are wrong
    wrong = {finding.name: finding for finding in Agreement(once, again, None, patched).findings()}
    assert not wrong["tokens"].passed
    assert not wrong["logits"].passed


def test_a_mamba_prefill_patch_of_the_library_model(tmp_path: Path) -> None:
    model = tiny_mamba(32)
    with torch.no_grad():
        workload = workload_of(recorded(model, "generate", torch.randint(1, 64, (1, 24)), max_new_tokens=3, do_sample=False))
    source = "import torch\n\n\ndef forward(module, state, x, *args, **kwargs):\n    y = x.float()\n"
    source += (
        "    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)\n    return module.weight * y.to(x.dtype)\n"
    )
    made = patch(workload.drivers[0], "MambaRMSNorm", "decode", source, tmp_path)
    result = tried(workload, made, pairs=3)
    assert failed(result) == []
    assert {site["path"] for site in result["sites"][made["candidate"]]} == set(made["paths"])
    assert len(result["patched_ms"]) == 3
    scaled = patch(workload.drivers[0], "MambaRMSNorm", "decode", source.replace("module.weight *", "1.01 * module.weight *"), tmp_path)
    assert "logits" in failed(tried(workload, scaled))


class Chaotic(SmallLM):
    """Its logits double every rounding error sixty times, so that two right runs have nothing in common."""

    def forward(self, ids: torch.Tensor, memory: Memory | None = None) -> torch.Tensor:
        z = torch.sigmoid(super().forward(ids, memory))
        for _ in range(60):
            z = 3.99 * z * (1.0 - z)
        return z


@pytest.mark.parametrize(("source", "right"), [(FASTER, True), (WRONG, False), (FORGETFUL, False)], ids=["right", "wrong", "no state"])
def test_where_rounding_decides_everything_sites_are_compared_on_the_same_inputs(source: str, right: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Chaotic().eval()
    before = portrait(model)
    workload = workload_of(recorded(model, "generate", torch.randint(0, 40, (1, 48)), 3))
    result = tried(workload, patch(workload.drivers[0], "SlowMixer", "prefill", source, tmp_path))
    checks = {check["name"]: check for check in result["checks"]}
    assert checks["sites"]["passed"] is right, checks["sites"]["detail"]
    assert (failed(result) == []) is right, checks
    if right:
        assert checks["tokens"]["excused"]
        assert "amplifies" in checks["tokens"]["detail"]
        assert "2 calls at 2 sites" in checks["sites"]["detail"]
    assert bool(result["baseline_ms"]) is right
    assert result["restored"]
    assert portrait(model) == before


IDENTITY = '''"""The original once more."""


def forward(module, state, *args, **kwargs):
    return type(module).forward(module, *args, **kwargs)
'''
SCALED = IDENTITY.rstrip() + " * 1.5\n"


@torch.no_grad()
def library(name: str) -> tuple[Workload, str, str]:
    """A workload, a class of its model and a phase in which that runs."""
    torch.manual_seed(0)
    ids = torch.randint(1, 64, (2, 9))
    if name == "qwen3":
        config = Qwen3Config(
            vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=8, eos_token_id=None, bos_token_id=1, pad_token_id=0,
        )  # fmt: skip
        model = Qwen3ForCausalLM(config).eval()
        return workload_of(recorded(model, "generate", ids, max_new_tokens=3, do_sample=False)), "Qwen3MLP", "decode"
    if name == "t5":
        t5 = T5ForConditionalGeneration(
            T5Config(
                vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0, eos_token_id=None,
                pad_token_id=0,
            )
        ).eval()  # fmt: skip
        return workload_of(recorded(t5, "generate", ids, max_new_tokens=3, do_sample=False)), "T5DenseActDense", "encode"
    bert = BertModel(BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)).eval()
    return workload_of(recorded(bert, "forward", ids), recorded(bert, "forward", ids[:, :4])), "BertIntermediate", "forward"


@pytest.mark.parametrize("name", ["qwen3", "t5", "bert"])
def test_library_models(name: str, tmp_path: Path) -> None:
    workload, module_class, phase = library(name)
    model = workload.roots[0].module
    before = portrait(model)
    right = patch(workload.drivers[0], module_class, phase, IDENTITY, tmp_path)
    result = tried(workload, right, pairs=3)
    assert failed(result) == []
    assert all(site["hits"] > 0 for site in result["sites"][right["candidate"]])
    assert len(result["patched_ms"]) == 3
    wrong = tried(workload, patch(workload.drivers[0], module_class, phase, SCALED, tmp_path), pairs=3)
    assert {"outputs", "logits", "tokens"} & set(failed(wrong))
    assert wrong["restored"]
    assert portrait(model) == before


def test_two_phases_of_one_module_are_patched_side_by_side(tmp_path: Path) -> None:
    workload, module_class, _ = library("qwen3")
    decode = patch(workload.drivers[0], module_class, "decode", IDENTITY, tmp_path)
    prefill = patch(workload.drivers[0], module_class, "prefill", IDENTITY + "\n# of its own\n", tmp_path)
    result = tried(workload, prefill, base=(decode,), pairs=3)
    assert failed(result) == []
    hits = {name: sum(site["hits"] for site in sites) for name, sites in result["sites"].items()}
    assert hits == {decode["candidate"]: 4, prefill["candidate"]: 2}
