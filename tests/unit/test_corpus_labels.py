"""What a verdict means under a label, and which corpora are refused."""

import json
from pathlib import Path

import pytest

from llm4llm.errors import BadCorpus
from llm4llm.schema.corpus import Label
from llm4llm.worker.selftest import Corpus

WRONG = Label(target="A", label="wrong", kind="numerical", expected=(("incorrect", "numerical"),))
HARMLESS = Label(target="A", label="wrong", kind="cheating", expected_outcomes=("rejected", "passed"), max_speedup=1.05)
HONEST = Label(target="A", label="honest", kind="packed", expected_outcomes=("passed",))


@pytest.mark.parametrize(
    ("label", "outcome", "kind", "speedup", "fate"),
    [
        (WRONG, "incorrect", "numerical", None, "as_labelled"),
        (WRONG, "incorrect", "shape", None, "other_reason"),
        (WRONG, "passed", "passed", 0.5, "missed"),
        (HARMLESS, "rejected", "clock", None, "as_labelled"),
        (HARMLESS, "passed", "passed", 1.0, "as_labelled"),
        (HARMLESS, "passed", "passed", None, "as_labelled"),
        (HARMLESS, "passed", "passed", 1.2, "missed"),
        (HARMLESS, "failed", "timeout", None, "other_reason"),
        (HONEST, "passed", "passed", 0.3, "as_labelled"),
        (HONEST, "failed", "runtime", None, "falsely_rejected"),
        (HONEST, "incorrect", "numerical", None, "falsely_rejected"),
    ],
)
def test_fate(label: Label, outcome: str, kind: str, speedup: float | None, fate: str) -> None:
    assert label.fate(outcome, kind, speedup) == fate


@pytest.mark.parametrize(
    ("facts", "on"),
    [
        ({}, ["cpu", "cuda:0"]),
        ({"device": "cuda"}, ["cuda:0"]),
        ({"needs": "cuda"}, ["cuda:0"]),
        ({"device": "cpu"}, ["cpu"]),
        ({"needs": "triton"}, ["cpu", "cuda:0"]),
    ],
)
def test_where_a_label_holds(facts: dict[str, str], on: list[str]) -> None:
    label = Label.model_validate({**ONE, **facts})
    assert [device for device in ("cpu", "cuda:0") if label.runs_on(device)] == on


def corpus(folder: Path, labels: object, *candidates: str) -> Path:
    (folder / "candidates").mkdir(parents=True)
    (folder / "workload.py").write_text("")
    (folder / "labels.json").write_text(labels if isinstance(labels, str) else json.dumps(labels))
    for name in candidates:
        (folder / "candidates" / f"{name}.py").write_text("")
    return folder


ONE = {"target": "A", "label": "honest", "kind": "k"}


@pytest.mark.parametrize(
    ("labels", "candidates", "why"),
    [
        ("{", ("a",), "can't be read"),
        ({"a": {**ONE, "label": "maybe"}}, ("a",), "can't be read"),
        ({"a": ONE, "b": ONE}, ("a",), "candidates/b.py has a label but is not there"),
        ({"a": ONE}, ("a", "b"), "candidates/b.py has no label"),
    ],
)
def test_a_corpus_that_is_none(labels: object, candidates: tuple[str, ...], why: str, tmp_path: Path) -> None:
    with pytest.raises(BadCorpus, match=why):
        Corpus.read(corpus(tmp_path / "c", labels, *candidates))


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadCorpus, match=r"no labels\.json"):
        Corpus.read(tmp_path)
    folder = corpus(tmp_path / "c", {"a": ONE}, "a")
    assert Corpus.read(folder).labels["a"].dtypes == ("float32", "bfloat16")
    (folder / "workload.py").unlink()
    with pytest.raises(BadCorpus, match=r"no workload\.py"):
        Corpus.read(folder)
