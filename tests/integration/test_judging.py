"""A verdict from real, limited processes: judge, candidate, compiler."""

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from judging import CORPUS, corpus_task

from llm4llm.errors import BadArguments, BadCandidate, BadTaskFolder, StageError
from llm4llm.harness import taskfile
from llm4llm.sandbox import ChildSpec, Failed, Files, Limits, Ok, Sandbox
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Failed as FailedVerdict
from llm4llm.schema.verdict import Passed, Rejected
from llm4llm.stages.verdict.judging import KeptJudge, _OutOfBounds, _Room, _Started, judge_candidate
from llm4llm.worker.judge import JobJudge

HONEST = CORPUS / "candidates" / "honest_norm_two_lines.py"
KERNEL = CORPUS / "candidates" / "honest_norm_kernel.py"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_task(tmp_path_factory.mktemp("task"), "MeanNorm")


def test_an_honest_candidate_is_measured_and_its_domain_recorded(task: Path, tmp_path: Path) -> None:
    with Sandbox(tmp_path) as sandbox:
        verdict = judge_candidate(task, HONEST, {"seconds": 2.0}, sandbox, sys.executable)
    assert isinstance(verdict, Passed), verdict.reason
    assert verdict.language == "torch"
    assert verdict.timing is not None
    assert verdict.speedup is not None
    assert verdict.ci95 is not None
    assert verdict.ci95[0] <= verdict.speedup <= verdict.ci95[1]
    assert len(verdict.timing.baseline_ms) == len(verdict.timing.patched_ms) >= 7
    assert verdict.gates == (
        "contract",
        "import",
        "captured",
        "determinism",
        "values",
        "shapes",
        "strides",
        "weights",
        "long_run",
        "timing",
    )
    sizes = [slot["sizes"] for one in verdict.proven_domain["alternatives"] for _, slot in one["slots"] if slot["kind"] == "tensor"]
    assert any(spans == [[1, 6], [1, 37], [48, 48]] for spans in sizes)


def test_kernels_are_interpreted_and_compiled_for_the_target(task: Path, tmp_path: Path) -> None:
    with Sandbox(tmp_path) as sandbox:
        verdict = judge_candidate(task, KERNEL, {"capabilities": [90]}, sandbox, sys.executable)
        assert isinstance(verdict, Passed), verdict.reason
        assert (verdict.language, verdict.speedup, verdict.timing, verdict.config) == ("triton", None, None, {"rows": 4})
        assert "not measured: interpreted" in verdict.reason
        assert {fact.target for fact in verdict.kernels} == {"sm_90"}
        assert all(fact.kernel == "_norm" and fact.shared_bytes is not None for fact in verdict.kernels)
        verdict = judge_candidate(task, KERNEL, {"capabilities": [90], "shared_bytes": 0, "gate_seconds": 0.0}, sandbox, sys.executable)
    assert isinstance(verdict, Rejected | Passed)
    assert isinstance(verdict, Passed) == all((fact.shared_bytes or 0) == 0 for fact in verdict.kernels)


def test_a_kernel_that_is_launched_in_the_first_call_alone_is_seen(task: Path, tmp_path: Path) -> None:
    """As with a candidate that keeps the compiled kernel and launches that from its second call on."""
    text = KERNEL.read_text().replace("def forward(module, state, x):", "def _launched(module, state, x):")
    text = text.replace(
        "def prepare(module, rows):\n    return rows", "def prepare(module, rows):\n    return {'rows': rows, 'warm': False}"
    )
    candidate = tmp_path / "candidate.py"
    candidate.write_text(
        text + "\n\ndef forward(module, state, x):\n    if not state['warm']:\n        _launched(module, state['rows'], x)\n"
        "        state['warm'] = True\n    return x / (x.abs().mean(-1, keepdim=True) + module.eps) * module.weight\n"
    )
    with Sandbox(tmp_path / "home") as sandbox:
        verdict = judge_candidate(task, candidate, {"capabilities": [90], "gate_seconds": 0.0}, sandbox, sys.executable)
    assert isinstance(verdict, Passed), verdict.reason
    assert verdict.language == "triton"
    assert {fact.kernel for fact in verdict.kernels} == {"_norm"}


def test_a_kept_judge_judges_each_candidate_afresh(task: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def forward(module, state, x):\n    return x / (x.abs().mean(-1, keepdim=True) + module.eps)\n")
    dead = tmp_path / "dead.py"
    dead.write_text("import os\n\n\ndef forward(module, state, x):\n    os.abort()\n")
    quick = {"seconds": 1.0, "gate_seconds": 0.0}
    with Sandbox(tmp_path / "home") as sandbox, KeptJudge(sandbox, sys.executable) as judge:
        assert isinstance(judge(task, HONEST, quick), Passed)
        first = judge._child
        outcomes = [judge(task, candidate, quick).outcome for candidate in (wrong, dead, HONEST)]
        assert judge._child is first
        with pytest.raises(BadCandidate):
            judge(task, tmp_path / "absent.py", quick)
        slow = judge(task, HONEST, {**quick, "seed": 5})
        (tmp_path / "other").mkdir()
        other = corpus_task(tmp_path / "other", "MeanNorm")
        assert isinstance(judge(other, HONEST, quick), Passed)
        assert judge._child is not first
        assert first is not None
        assert not first.alive
    assert outcomes == ["incorrect", "rejected", "passed"]
    assert isinstance(slow, Passed)


def test_unusable_input_is_named(task: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes("# caf\xe9".encode("latin-1"))
    with Sandbox(tmp_path / "home") as sandbox:

        def judged(folder: Path, candidate: Path, **options: object) -> None:
            judge_candidate(folder, candidate, options, sandbox, sys.executable)

        with pytest.raises(BadTaskFolder, match="no such folder"):
            judged(tmp_path / "absent", HONEST)
        with pytest.raises(BadTaskFolder, match=r"no task\.json"):
            judged(tmp_path, HONEST)
        with pytest.raises(BadCandidate, match="no such file"):
            judged(task, tmp_path / "absent.py")
        with pytest.raises(BadCandidate, match="utf-8"):
            judged(task, tmp_path / "latin.py")
        with pytest.raises(BadArguments, match="secnods"):
            judged(task, HONEST, secnods=3)


def test_a_task_that_does_not_reproduce_is_refused(tmp_path: Path) -> None:
    task = corpus_task(tmp_path, "Mixer")
    other = corpus_task(tmp_path / "other" if (tmp_path / "other").mkdir() is None else tmp_path, "MeanNorm")
    stolen = (other / taskfile.REFERENCE_FILE).read_bytes()
    (task / taskfile.REFERENCE_FILE).write_bytes(stolen)
    with Sandbox(tmp_path / "home") as sandbox:
        with pytest.raises(BadTaskFolder, match="not what was written"):
            judge_candidate(task, HONEST, {}, sandbox, sys.executable)
        facts = json.loads((task / "task.json").read_text())
        facts["file_sha256"][taskfile.REFERENCE_FILE] = taskfile.file_sha256(task / taskfile.REFERENCE_FILE)
        (task / "task.json").write_text(json.dumps(facts))
        with pytest.raises(BadTaskFolder, match="disagrees with its recording"):
            judge_candidate(task, HONEST, {}, sandbox, sys.executable)


@pytest.mark.parametrize(
    "event",
    [
        {"spawn": {"socket": "/tmp/elsewhere/socket", "environment": {}, "module": "x"}},
        {"spawn": {"socket": "{room}/j1/correctness-aaaaaa/socket", "environment": {"PYTHONPATH": "/tmp"}, "module": "x"}},
        {"spawn": {"socket": "{room}/j1/../../../x-aaaaaa/socket", "environment": {}, "module": "x"}},
        {"compile": {"candidate": "c", "launches": [], "capability": 90, "reply": "/tmp/compiled-90.json"}},
        {"compile": {"candidate": "c", "launches": [], "capability": 90, "reply": "{room}/compiled-90.json"}},
        {"reap": {}},
        {"spawn": None},
    ],
)
def test_a_judge_that_was_taken_over_gets_nothing_it_asks_for(event: dict[str, object], tmp_path: Path) -> None:
    """It reads what a script's process has written, so one day it may run that script's code."""
    with Sandbox(tmp_path / "home") as sandbox:
        room = _Room(tmp_path / "room")
        started = _Started(sandbox, sys.executable, room, 60.0)
        wanted = json.loads(json.dumps(event).replace("{room}", str(room.path)))
        with pytest.raises((_OutOfBounds, KeyError, TypeError)):
            started.hear(wanted)
        assert started.children == {}
        started.close()


class FakeChild:
    """A child that goes on until it is struck."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def request(self, op: str, payload: dict[str, Any], timeout_s: float) -> Failed:
        assert op == "fate" or self.over.wait(20)
        return Failed("died", "it was ended", -9, "")

    def strike(self) -> None:
        self.over.set()

    def kill(self) -> None:
        self.over.set()

    def __enter__(self) -> "FakeChild":
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()


class FakeSandbox:
    """Counts what is started."""

    hidden = ()

    def __init__(self) -> None:
        self.children: list[FakeChild] = []

    def start(self, spec: ChildSpec) -> FakeChild:
        self.children.append(FakeChild())
        return self.children[-1]

    @property
    def alive(self) -> int:
        return sum(not child.over.is_set() for child in self.children)


def started_in(tmp_path: Path, sandbox: FakeSandbox, capabilities: frozenset[int] | None) -> _Started:
    return _Started(cast(Sandbox, sandbox), sys.executable, _Room(tmp_path / "room"), 60.0, capabilities)


def compile_event(started: _Started, capability: object, number: object = None) -> dict[str, Any]:
    reply = f"{started.room.path}/j1/compiled-{capability if number is None else number}.json"
    return {"compile": {"candidate": "c", "launches": [], "capability": capability, "reply": reply}}


def test_kernels_are_compiled_once_for_each_gpu_that_was_asked_for(tmp_path: Path) -> None:
    sandbox = FakeSandbox()
    started = started_in(tmp_path, sandbox, frozenset({80, 86, 89, 90}))
    for capability in (80, 86, 89, 90):
        started.hear(compile_event(started, capability))
    for event in (
        compile_event(started, 90),
        compile_event(started, 91),
        compile_event(started, "80"),
        compile_event(started, 80.0, 80),
        compile_event(started, 86, 89),
    ):
        with pytest.raises(_OutOfBounds):
            started.hear(event)
    deadline = time.monotonic() + 10
    while sandbox.alive < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sandbox.alive == 2  # the others wait
    began = time.monotonic()
    started.close()  # nobody waits for a compiler whose judgement is over
    assert time.monotonic() - began < 5
    assert sandbox.alive == 0


def test_without_a_wish_kernels_are_compiled_for_one_gpu(tmp_path: Path) -> None:
    started = started_in(tmp_path, FakeSandbox(), None)
    started.hear(compile_event(started, 90))
    with pytest.raises(_OutOfBounds):
        started.hear(compile_event(started, 80))
    started.close()


def test_processes_of_a_judgement_are_counted_whatever_they_are_called(tmp_path: Path) -> None:
    sandbox = FakeSandbox()
    started = started_in(tmp_path, sandbox, None)

    def spawn(name: str) -> None:
        started.hear({"spawn": {"socket": f"{started.room.path}/j1/{name}/socket", "environment": {}}})

    spawn("timing-aaaaaa")
    with pytest.raises(_OutOfBounds):
        spawn("timing-aaaaaa")
    for number in range(15):
        started._reap(f"{started.room.path}/j1/{'timing-aaaaaa' if number == 0 else f'timing-{number:06x}'}/socket")
        spawn(f"timing-{number + 1:06x}")
    started._reap(f"{started.room.path}/j1/timing-{15:06x}/socket")
    with pytest.raises(_OutOfBounds):
        spawn("timing-bbbbbb")
    assert len(sandbox.children) == 16
    started.close()
    assert sandbox.alive == 0


def test_a_verdict_of_another_form_is_the_judges_fault(task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Ok({"outcome": "passed", "reason": 1})
    child = SimpleNamespace(alive=True, request=lambda *_: answer)
    with Sandbox(tmp_path / "home") as sandbox, KeptJudge(sandbox, sys.executable) as judge:
        judge._scratch = tmp_path
        (tmp_path / "rooms").mkdir()
        monkeypatch.setattr(judge, "_ready", lambda *_: child)
        with pytest.raises(StageError, match="no verdict"):
            judge(task, HONEST, {})


@pytest.mark.parametrize("kind", ["pipe", "large"])
def test_a_candidate_that_is_no_plain_file_of_its_size_is_refused(task: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "candidate.py"
    os.mkfifo(file) if kind == "pipe" else file.write_text("#" * (257 << 10))
    with Sandbox(tmp_path / "home") as sandbox, pytest.raises(BadCandidate):
        judge_candidate(task, file, {}, sandbox, sys.executable)


def test_a_job_s_task_is_the_one_that_was_taken_and_no_other(task: Path, tmp_path: Path) -> None:
    """Whatever place the live host named, and whatever lies there."""
    named = tmp_path / "job_1" / "tasks" / "t_1"
    named.parent.mkdir(parents=True)
    shutil.copytree(task, named)
    facts: dict[str, Any] = dict.fromkeys(("hotspot", "module_class", "module_path", "root", "family", "device"), "x")
    facts |= {"share": 0.5, "calls": 1, "dtypes": (), "target": "cpu", "folder": str(named)}
    request = Request(script="/s.py", script_sha256="0", working_directory="/", python=sys.executable)
    job = Job(id="job_1", request=request, status=JobStatus.RUNNING, created_at="2025")
    with Sandbox(tmp_path / "home") as sandbox:
        judge = JobJudge(sandbox, job, tmp_path / "job_1")
        absent = judge(Task.model_validate({**facts, "id": "t_1", "phase": "forward"}), HONEST, time_limit_s=60.0)
        away = judge(Task.model_validate({**facts, "id": "../../job_1/tasks/t_1", "phase": "forward"}), HONEST, time_limit_s=60.0)
        judge.close()
    assert isinstance(absent, FailedVerdict)
    assert isinstance(away, FailedVerdict)
    assert (absent.kind, away.kind) == ("bad_task_folder", "bad_task")
    assert str(named) not in absent.reason


def test_a_task_that_was_swapped_for_a_link_is_not_read(task: Path, tmp_path: Path) -> None:
    with Sandbox(tmp_path / "home") as sandbox:
        if not sandbox.facts().landlock:
            pytest.skip(sandbox.facts().reason)
        room = _Room(tmp_path / "room")
        (tmp_path / "other").mkdir()
        pinned = {str(room.path): room.pin}
        room.path.rename(tmp_path / "moved")
        room.path.symlink_to(tmp_path / "other")
        files = Files(hidden=sandbox.hidden, writable=(room.path,), pinned=pinned)
        spec = ChildSpec("llm4llm.harness.kernels", sys.executable, tmp_path, limits=Limits(network=False), files=files)
        with sandbox.start(spec) as child:
            answer = child.request("compile", {}, 30)
    assert isinstance(answer, Failed)
    assert "was replaced" in answer.stderr_tail
