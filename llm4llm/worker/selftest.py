"""The judge judged: candidates with known answers, through the same capture, tasks, processes and gates as any other.

A corpus is a folder with workload.py (a plain script that takes --dtype), labels.json and candidates/NAME.py.
"""

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llm4llm.errors import BadCorpus, Llm4llmError
from llm4llm.kit import SystemClock
from llm4llm.sandbox import Sandbox, scrubbed
from llm4llm.schema.corpus import Dtype, Heard, Label, SelftestReport
from llm4llm.schema.event import Event
from llm4llm.schema.job import Budget, Request, StageName
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Passed
from llm4llm.service.jobs import submit
from llm4llm.settings import Settings
from llm4llm.stages.verdict.judging import KeptJudge
from llm4llm.store import Queue, open_store
from llm4llm.worker.judge import judge_options
from llm4llm.worker.local import run_job
from llm4llm.worker.walk import walk

_LABELS: TypeAdapter[dict[str, Label]] = TypeAdapter(dict[str, Label])
_EXTRACTION_S = 600.0
_TIME_LIMIT_S = 120.0  # of one judgement
_CALL_S = 8.0  # a corpus's modules are small, and some of its files never end
_TARGET = "a100"  # kernels are compiled for it wherever this runs, so that the same answers are expected everywhere
_TIMING_S = 1.0  # enough to see that a clock is false; how fast a candidate is matters little here
_OPTIONS = {**judge_options(_TARGET, _TIME_LIMIT_S), "seconds": _TIMING_S, "call_timeout_s": _CALL_S}
_NEUTRAL = "candidate.py"  # no judge may go by a file's name


@dataclass(frozen=True)
class Corpus:
    """A folder of candidates with their labels, read and checked."""

    folder: Path
    labels: Mapping[str, Label]

    @classmethod
    def read(cls, folder: Path) -> "Corpus":
        """BadCorpus if something is missing or not as it has to be."""
        try:
            labels = _LABELS.validate_json((folder / "labels.json").read_bytes())
        except FileNotFoundError as error:
            raise BadCorpus(str(folder), "there is no labels.json in it") from error
        except (OSError, ValidationError) as error:
            raise BadCorpus(str(folder), f"its labels.json can't be read ({str(error).splitlines()[0]})") from error
        if not (folder / "workload.py").is_file():
            raise BadCorpus(str(folder), "there is no workload.py in it")
        missing = sorted(name for name in labels if not (folder / "candidates" / f"{name}.py").is_file())
        if missing:
            raise BadCorpus(str(folder), f"candidates/{missing[0]}.py has a label but is not there")
        unlabelled = sorted({file.stem for file in (folder / "candidates").glob("*.py")} - labels.keys())
        if unlabelled:
            raise BadCorpus(str(folder), f"candidates/{unlabelled[0]}.py has no label")
        return cls(folder, labels)


@dataclass(frozen=True)
class Wanted:
    """Which part of a corpus, and with what."""

    dtypes: Sequence[Dtype]
    python: str
    kinds: frozenset[str] = frozenset()  # empty: every kind
    judges: int = 1  # side by side


@dataclass(frozen=True)
class Recorded:
    """Tasks of one run of the workload; why classes got none."""

    tasks: tuple[Task, ...]
    refused: dict[str, str]


@dataclass
class _Plan:
    """Tasks by dtype, what is judged on each, and what can't be."""

    groups: list[tuple[Dtype, Task, list[str]]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"


def selftest(corpus: Corpus, wanted: Wanted, heard: Callable[[Heard, int], None]) -> SelftestReport:
    """Every label of the corpus that applies here. `heard` gets each answer and how many are to come, one at a time.

    BadCorpus if the workload does not run or a target class was not found in it.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="llm4llm-selftest-") as scratch:
        home = Path(scratch)
        plan = _Plan()
        for dtype in wanted.dtypes:
            _add(plan, corpus, wanted, dtype, recorded_tasks(corpus, dtype, wanted.python, home))
        answers = _Answers(sum(len(names) for _, _, names in plan.groups), heard)
        with Sandbox(home) as sandbox, ThreadPoolExecutor(max(1, wanted.judges)) as pool:
            waiting = [pool.submit(_judged, corpus, wanted.python, sandbox, home, group, answers.add) for group in plan.groups]
            try:
                for future in waiting:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                sandbox.end_all()
                raise
        order = {name: number for number, name in enumerate(corpus.labels)}
        found = sorted(answers.found, key=lambda one: (order[one.candidate], one.dtype))
    return SelftestReport(device=plan.device, heard=tuple(found), left_out=plan.left_out, seconds=time.monotonic() - started)


class _Answers:
    """Collects from several threads."""

    def __init__(self, expected: int, told: Callable[[Heard, int], None]) -> None:
        self.found: list[Heard] = []
        self._expected, self._told, self._lock = expected, told, Lock()

    def add(self, one: Heard) -> None:
        with self._lock:
            self.found.append(one)
            self._told(one, self._expected - len(self.found))


def recorded_tasks(corpus: Corpus, dtype: Dtype, python: str, home: Path) -> Recorded:
    """The tasks of the corpus's workload, extracted by a job of its own."""
    settings = Settings(home=home, database_url=f"sqlite:///{home / 'selftest.sqlite3'}", blob_root=str(home / "blobs"))
    request = Request(
        script=str(corpus.folder.absolute() / "workload.py"),
        script_sha256="",
        arguments=("--dtype", dtype),
        working_directory=str(corpus.folder.absolute()),
        python=python,
        environment=scrubbed(os.environ),
        target="auto",
        budget=Budget(seconds=_EXTRACTION_S),
        stop_after=StageName.TASK,
    )
    store = open_store(settings.database, settings.blobs)
    try:
        job = submit(request, store, SystemClock(), random.Random(), Queue.FOREGROUND)  # noqa: S311 (ids, not secrets)
        ended = run_job(job.id, settings, _unheard, partial(walk, min_share=0.0))
        results = store.stages.results(job.id)
    finally:
        store.close()
    if results.task is None or results.profile is None:
        raise BadCorpus(str(corpus.folder), f"its workload gave no tasks ({ended.reason.text if ended.reason else 'it was not profiled'})")
    names = {spot.id: spot.module_class.rpartition(".")[2] for spot in results.profile.hotspots}
    return Recorded(results.task.tasks, {names[spot]: reason.text for spot, reason in results.task.skipped.items()})


def _unheard(event: Event) -> None:
    pass


def _add(plan: _Plan, corpus: Corpus, wanted: Wanted, dtype: Dtype, recorded: Recorded) -> None:
    """Assign candidates to tasks; BadCorpus for a class that the workload does not run."""
    tasks = recorded.tasks
    device = next((task.device for task in tasks if task.device != "cpu"), "cpu")
    plan.device = device
    groups: dict[str, tuple[Task, list[str]]] = {}
    for name, label in corpus.labels.items():
        if (wanted.kinds and label.kind not in wanted.kinds) or dtype not in label.dtypes:
            continue
        if not label.runs_on(device):
            plan.left_out[name] = f"it is not for {device}, where the tasks of this machine are"
            continue
        fitting = [
            task for task in tasks if task.module_class.rpartition(".")[2] == label.target and task.phase in (label.phases or (task.phase,))
        ]
        if not fitting:
            why = recorded.refused.get(label.target, "it is not called there")
            raise BadCorpus(str(corpus.folder), f"its workload gave no task for {label.target}, which {name} replaces: {why}")
        task = max(fitting, key=lambda one: one.calls)
        groups.setdefault(task.id, (task, []))[1].append(name)
    plan.groups += [(dtype, task, names) for task, names in groups.values()]


def _judged(
    corpus: Corpus, python: str, sandbox: Sandbox, home: Path, group: tuple[Dtype, Task, list[str]], add: Callable[[Heard], None]
) -> None:
    """One judge process for all candidates of one task, as in a job."""
    dtype, task, names = group
    place = home / f"copies-{dtype}-{task.id}"
    place.mkdir()
    with KeptJudge(sandbox, python) as judge:
        for name in names:
            label, started = corpus.labels[name], time.monotonic()
            copy = place / _NEUTRAL
            copy.write_bytes((corpus.folder / "candidates" / f"{name}.py").read_bytes())
            answer = _answer(judge, task, copy, label)
            seconds = time.monotonic() - started
            facts = {
                "candidate": name,
                "dtype": dtype,
                "target": label.target,
                "phase": task.phase,
                "label": label.label,
                "kind": label.kind,
            }
            add(Heard.model_validate({**facts, **answer, "seconds": seconds}))


def _answer(judge: KeptJudge, task: Task, candidate: Path, label: Label) -> dict[str, Any]:
    assert task.folder is not None
    try:
        verdict = judge(Path(task.folder), candidate, _OPTIONS)
    except Llm4llmError as error:
        # what can't be read as a candidate at all is refused before any gate
        fate = "as_labelled" if label.label == "wrong" and ("unusable", error.code) in label.expected else "not_judged"
        return {"outcome": "unusable", "verdict_kind": error.code, "reason": str(error), "fate": fate}
    speedup = verdict.speedup if isinstance(verdict, Passed) else None
    fate = label.fate(verdict.outcome, verdict.kind, speedup)
    return {"outcome": verdict.outcome, "verdict_kind": verdict.kind, "reason": verdict.reason, "speedup": speedup, "fate": fate}


def report_json(report: SelftestReport) -> str:
    """The report as one JSON object, `clean` included."""
    return json.dumps({**report.model_dump(mode="json"), "clean": report.clean})
