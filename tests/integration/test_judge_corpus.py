"""The judge against candidates with known answers: nothing wrong gets through, nothing right is turned away."""

from pathlib import Path

import pytest
import torch
from judging import CORPUS, corpus_task, judged

TARGETS = {"norm": "MeanNorm", "mixer": "Mixer", "decay": "Decay", "pool": "Pool"}
# what each wrong file has to be caught by: (outcome, kind)
WRONG = {
    "wrong_norm_signed": ("incorrect", "numerical"),
    "wrong_norm_no_eps": ("incorrect", "numerical"),
    "wrong_norm_in_place": ("incorrect", "input_mutated"),
    "wrong_norm_tail": ("incorrect", "numerical"),
    "wrong_norm_half": ("incorrect", "numerical"),
    "wrong_norm_one_buffer": ("rejected", "result_reused"),
    "wrong_norm_wide": ("incorrect", "dtype"),
    "wrong_norm_turned": ("incorrect", "stride"),
    "wrong_norm_tired": ("incorrect", "numerical"),
    "wrong_norm_remembers": ("incorrect", "numerical"),
    "wrong_norm_subclass": ("incorrect", "type"),
    "wrong_norm_unmasked_kernel": ("incorrect", "numerical"),
    "wrong_norm_clock": ("rejected", "monkeypatch"),
    "wrong_mixer_zeros": ("incorrect", "numerical"),
    "wrong_mixer_batches": ("incorrect", "numerical"),
    "wrong_mixer_old_weights": ("incorrect", "numerical"),
    "wrong_mixer_scales_module": ("rejected", "module_changed"),
    "wrong_mixer_asks_back": ("rejected", "fallback"),
    "wrong_mixer_declines": ("rejected", "never_accepts"),
    "wrong_mixer_dice": ("incorrect", "effect"),
    "wrong_mixer_second_config": ("incorrect", "numerical"),
    "wrong_mixer_large_batches": ("failed", "runtime"),
    "wrong_mixer_never_ends": ("failed", "timeout"),
    "wrong_decay_forgets": ("incorrect", "effect"),
    "wrong_decay_miscounts": ("incorrect", "effect"),
    "wrong_decay_shared_result": ("incorrect", "alias"),
    "wrong_pool_no_mask": ("incorrect", "numerical"),
    "wrong_pool_unshifted": ("incorrect", "numerical"),
}
FILES = sorted((CORPUS / "candidates").glob("*.py"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tasks")
    return {kind: corpus_task(root, kind) for kind in TARGETS.values()}


def test_every_file_has_a_label() -> None:
    assert {file.stem for file in FILES if file.stem.startswith("wrong")} == WRONG.keys()
    assert sum(file.stem.startswith("honest") for file in FILES) >= 6


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_corpus(file: Path, tasks: dict[str, Path], tmp_path: Path) -> None:
    neutral = tmp_path / "candidate.py"
    neutral.write_bytes(file.read_bytes())
    limits = {"call_timeout_s": 4.0} if file.stem == "wrong_mixer_never_ends" else {}
    verdict = judged(tasks[TARGETS[file.stem.split("_")[1]]], neutral, **limits)
    found = (verdict["outcome"], verdict["kind"])
    assert found == WRONG.get(file.stem, ("passed", "passed")), f"{verdict['reason']} {verdict['feedback']}"
    assert len(verdict["feedback"]) <= 40


@pytest.mark.parametrize("name", ["honest_norm_two_lines", "honest_mixer_packed", "honest_decay_one_buffer", "honest_pool_fused"])
def test_honest_in_bfloat16(name: str, tmp_path: Path) -> None:
    task = corpus_task(tmp_path, TARGETS[name.split("_")[1]], torch.bfloat16)
    verdict = judged(task, CORPUS / "candidates" / f"{name}.py")
    assert verdict["outcome"] == "passed", f"{verdict['reason']} {verdict['feedback']}"
