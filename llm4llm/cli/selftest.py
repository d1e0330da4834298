"""judge selftest: the judge against candidates with known answers."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.table import Table

from llm4llm.assets import corpus_dir
from llm4llm.cli import say
from llm4llm.cli.request import interpreter
from llm4llm.errors import BadArguments
from llm4llm.schema.corpus import Dtype, Heard, SelftestReport
from llm4llm.worker.selftest import Corpus, Wanted, report_json, selftest

_CORES_PER_JUDGE = 2  # the judge and a candidate's process, which work in turns and at the same time
_TITLES = {
    "as_labelled": "as labelled",
    "missed": "MISSED",
    "falsely_rejected": "FALSELY REJECTED",
    "other_reason": "caught for another reason",
    "not_judged": "NOT JUDGED",
}


@dataclass(frozen=True)
class Asked:
    """What the user typed."""

    corpus: Path | None
    dtype: str
    kinds: tuple[str, ...]
    judges: int | None
    python: str | None


def run(asked: Asked, as_json: bool) -> int:
    """Print the score; 0 if nothing wrong passed and nothing honest was turned away. BadCorpus, BadArguments."""
    corpus = Corpus.read(asked.corpus or corpus_dir())
    known = sorted({label.kind for label in corpus.labels.values()})
    unknown = sorted(set(asked.kinds) - set(known))
    if unknown:
        raise BadArguments(f"no candidate is of the kind {unknown[0]}", f"kinds of this corpus: {', '.join(known)}")
    judges = asked.judges or max(1, (os.cpu_count() or 1) // _CORES_PER_JUDGE)
    wanted = Wanted(_dtypes(asked.dtype), interpreter(asked.python), frozenset(asked.kinds), judges)
    say.note(f"recording {corpus.folder / 'workload.py'} in {', '.join(wanted.dtypes)}; this takes about ten seconds each")
    report = selftest(corpus, wanted, _tell)
    if as_json:
        say.result(report_json(report))
    else:
        _print(report)
    return say.EXIT_OK if report.clean else say.EXIT_FAILED


def _dtypes(name: str) -> tuple[Dtype, ...]:
    every: tuple[Dtype, ...] = get_args(Dtype)
    found = every if name == "all" else tuple(one for one in every if one == name)
    if not found:
        raise BadArguments(f"--dtype {name} is not one that the corpus is recorded in", f"give one of {', '.join(every)}, all")
    return found


def _tell(one: Heard, left: int) -> None:
    verdict = one.outcome if one.outcome == one.verdict_kind else f"{one.outcome} ({one.verdict_kind})"
    bad = one.fate in ("missed", "falsely_rejected", "not_judged", "other_reason")
    why = f", {_TITLES[one.fate]}: {one.reason}" if bad else ""
    say.note(f"{one.candidate}, {one.dtype}: {verdict} after {one.seconds:.1f} s{why}; {left} to go")


def _print(report: SelftestReport) -> None:
    table = Table(title=f"The judge on {report.device}", title_justify="left")
    table.add_column("kind")
    for name in ("wrong", "caught", "missed", "honest", "passed", "falsely rejected", "not judged"):
        table.add_column(name, justify="right")
    kinds = sorted({one.kind for one in report.heard})
    for kind in [*kinds, None]:
        table.add_row(*say.cells(*_row(kind, report)), end_section=kind == kinds[-1] if kinds else False)
    say.tables().print(table)
    for one in report.heard:
        if one.fate != "as_labelled":
            say.result(
                f"{_TITLES[one.fate]}: {one.candidate} ({one.target}, {one.dtype}): {one.outcome} ({one.verdict_kind}), {one.reason}"
            )
    for name, why in report.left_out.items():
        say.result(f"left out: {name}, because {why}")
    ended = "the judge holds" if report.clean else "the judge FAILS its own test"
    say.result(f"{ended}: {len(report.heard)} verdicts in {report.seconds:.0f} s")


def _row(kind: str | None, report: SelftestReport) -> tuple[object, ...]:
    of_kind = [one for one in report.heard if kind in (None, one.kind)]
    labels, fates = Counter(one.label for one in of_kind), Counter(one.fate for one in of_kind)
    wrong = [one for one in of_kind if one.label == "wrong"]
    caught = sum(one.fate in ("as_labelled", "other_reason") for one in wrong)
    honest = sum(one.fate == "as_labelled" for one in of_kind if one.label == "honest")
    counts = (labels["wrong"], caught, fates["missed"], labels["honest"], honest, fates["falsely_rejected"], fates["not_judged"])
    return (kind or "all", *counts)
