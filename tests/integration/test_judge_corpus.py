"""The judge against candidates with known answers: nothing wrong gets through, nothing right is turned away."""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from judging import CORPUS, REPOSITORY, Court, corpus_modules, corpus_task

from llm4llm.harness.judge import Refused

LABELS: dict[str, dict[str, Any]] = json.loads((CORPUS / "labels.json").read_text(encoding="utf-8"))
FIELDS = {"target", "label", "kind", "why", "expected", "dtypes", "needs"}
KINDS = {"numerical", "inputs", "effects", "memory", "cheating", "contract", "compile", "runtime", "timing"}
# every kind of fault once more where results are rounded coarsely, and what may be rounded otherwise
SAMPLE = [
    *("wrong_norm_tail", "wrong_turn_backwards", "wrong_lookup_short_table", "wrong_pool_usual_mask", "wrong_recall_twice"),
    *("wrong_join_apart", "wrong_mixer_two_buffers", "wrong_mixer_counted", "wrong_trail_short", "wrong_blend_untransposed"),
    *("honest_norm_two_lines", "honest_mixer_packed", "honest_decay_one_buffer", "honest_decay_matrix", "honest_pool_fused"),
    *("honest_turn_complex", "honest_bend_shifted", "honest_recall_set", "honest_bands_library", "honest_blend_single"),
    *("honest_vote_blocks", "honest_pick_best_first", "honest_sieve_where", "honest_lookup_packed", "honest_join_in_place"),
]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def runs(name: str) -> bool:
    return LABELS[name]["needs"] != "cuda" or torch.cuda.is_available()


CASES = [(name, "float32") for name in LABELS if "float32" in LABELS[name]["dtypes"] and runs(name)]
CASES += [(name, "bfloat16") for name in SAMPLE]
CASES.sort(key=lambda case: (case[1], LABELS[case[0]]["target"]))  # one task after the other


def verdicts_of(root: Path, names: list[str], dtype: str) -> dict[str, tuple[str, str, str]]:
    """(outcome, kind, reason and feedback) of files for one target, by a judge that keeps the task. Runs in a process of its own."""
    torch.set_num_threads(1)
    folder = root / f"{LABELS[names[0]]['target']}-{dtype}"
    folder.mkdir()
    task, court = corpus_task(folder, LABELS[names[0]]["target"], getattr(torch, dtype)), Court()
    found = {}
    for name in names:
        neutral = folder / "candidate.py"
        neutral.write_bytes((CORPUS / "candidates" / f"{name}.py").read_bytes())
        options: dict[str, Any] = {"call_timeout_s": 4.0} if ["failed", "timeout"] in LABELS[name]["expected"] else {}
        if LABELS[name]["kind"] == "compile":
            options["capabilities"] = [80]
        try:
            verdict = court.judged(task, neutral, **options)
            assert len(verdict["feedback"]) <= 40
            found[name] = (verdict["outcome"], verdict["kind"], f"{verdict['reason']} {verdict['feedback']}")
        except Refused as refused:
            found[name] = ("unusable", refused.kind, str(refused))
    return found


Verdicts = dict[tuple[str, str], Future[dict[str, tuple[str, str, str]]]]


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verdicts]:
    """What two judges make of the files that were selected, by target and dtype."""
    wanted: dict[tuple[str, str], list[str]] = {}
    for item in request.session.items:
        if getattr(item, "originalname", "") == test_corpus.__name__:
            name, dtype = item.callspec.params["name"], item.callspec.params["dtype"]  # type: ignore[attr-defined]
            wanted.setdefault((LABELS[name]["target"], dtype), []).append(name)
    root = tmp_path_factory.mktemp("tasks")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), mp_context=context) as pool:
        yield {key: pool.submit(verdicts_of, root, names, key[1]) for key, names in wanted.items()}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda value: value)
def test_corpus(name: str, dtype: str, verdicts: Verdicts) -> None:
    outcome, kind, said = verdicts[LABELS[name]["target"], dtype].result()[name]
    assert [outcome, kind] in LABELS[name]["expected"], said


def test_every_file_has_a_label() -> None:
    assert {file.stem for file in (CORPUS / "candidates").glob("*.py")} == LABELS.keys()
    for name, label in LABELS.items():
        assert label.keys() == FIELDS, name
        assert label["label"] == name.partition("_")[0], name
        assert label["kind"] in KINDS, name
        assert label["needs"] in (None, "triton", "cuda"), name
        assert set(label["dtypes"]) <= {"float32", "bfloat16"}, name
        assert label["dtypes"], name
        passes = ["passed", "passed"] in label["expected"]
        assert passes == (label["label"] == "honest"), name
    kinds = [label["kind"] for label in LABELS.values() if label["label"] == "wrong"]
    assert len(kinds) >= 75
    assert all(kinds.count(kind) >= 4 for kind in KINDS)
    assert sum(label["label"] == "honest" for label in LABELS.values()) >= 25


def test_the_workload_gives_one_task_per_module(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from llm4llm.cli.main import main; main()", "tasks", str(CORPUS / "workload.py"), "--out", "tasks"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    classes = [json.loads(line)["module_class"] for line in done.stdout.splitlines()]
    assert {name: classes.count(name) for name in corpus_modules().TARGETS} == dict.fromkeys(corpus_modules().TARGETS, 1)
    assert {label["target"] for label in LABELS.values()} == corpus_modules().TARGETS.keys()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_labels_are_true_by_formulas_in_double_precision(dtype: str) -> None:
    command = [sys.executable, str(CORPUS / "check_labels.py"), "--dtype", dtype]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
