"""The judge: `python -m llm4llm.harness.judge`, op `judge` {"task": folder, "candidate": file, "options": {…}}.

It holds inputs, references and the oracle, never imports a candidate, and asks its parent for the processes that do, with events:
{"spawn": {"socket", "environment", "module", "purpose"}} starts a candidate process that connects to the socket; {"reap": {"socket"}} ends
it, and the parent then writes `<socket>.fate`: {"kind", "reason", "exit_code", "stderr_tail"}; {"compile": {"candidate", "launches",
"capability", "reply"}} has the kernels compiled and the answer written to `reply`.

The answer is a verdict as schema/verdict.py has it. Errors: `bad_task`, `bad_candidate`, `bad_options`, `task_not_reproducible`.
"""

import ast
import json
import os
import shutil
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from llm4llm.harness import contract, taskfile
from llm4llm.harness.bench import Bench, NotReproducible, Options
from llm4llm.harness.candidate import EARLY_VARIABLE
from llm4llm.harness.channel import Channel
from llm4llm.harness.confine import confine
from llm4llm.harness.gates import Gates, Record, Stop
from llm4llm.harness.inputs import different
from llm4llm.harness.measure import Stopwatch, Timed
from llm4llm.harness.roomfiles import Folder
from llm4llm.harness.subject import Broken, Gone, Subject, Tell
from llm4llm.harness.wording import counted
from llm4llm.runtime import domain

_IMPORT_TIMEOUT_S = 60.0
_COMPILE_TIMEOUT_S = 180.0
_MOST_ANSWER_BYTES = 16 << 20  # of the compiler
MOST_CONFIGS = 16
MOST_FEEDBACK = 40
_LANGUAGE_CALLS = 4
_SPARE_CORES = 4  # from here on, processes that may not be needed are started early


class Refused(Exception):
    """Unusable input: no verdict."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass
class Findings:
    """What is known of the candidate so far, for the verdict."""

    record: Record = field(default_factory=Record)
    language: str = "unknown"
    kernels: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    timed: Timed | None = None
    lines: list[str] = field(default_factory=list)
    timing_notes: list[str] = field(default_factory=list)


class Judgement:
    """One candidate against one bench."""

    def __init__(self, text: str, scratch: Path, tell: Tell, device: str) -> None:
        self._text, self._scratch, self._tell = text, scratch, tell
        self._subjects: dict[str, Subject] = {}
        self._launches: list[dict[str, Any]] = []
        self._files = Folder.at(scratch)
        self._compiling: dict[int, str] = {}  # by capability: the file in which the answer will be
        self._bench: Bench
        self.findings = Findings()
        self._measures = False
        self._launches_kernels = _imports_triton(text)
        self._interpreted = device == "cpu" and self._launches_kernels

    # ---- processes --------------------------------------------------------------------------------------------------

    def start(self, *, measure: bool, early: str) -> None:
        """The static gate, and the request for processes: they start while references are made. `early`: a module for them to import."""
        self.findings.record.gates.append("contract")
        violations = contract.check_source(self._text)
        if violations:
            raise Stop("rejected", violations[0].rule, violations[0].text, [one.text for one in violations[1:10]])
        self._early = early
        self._begin("correctness")
        self._measures = measure and not self._interpreted
        if self._measures and (os.cpu_count() or 1) >= _SPARE_CORES:
            self._begin("timing")  # in vain if the candidate turns out to be wrong, which costs nobody here any time

    def _begin(self, purpose: str) -> None:
        environment = {"TRITON_INTERPRET": "1"} if self._interpreted else {}
        if self._early:
            environment[EARLY_VARIABLE] = self._early
        self._subjects[purpose] = Subject(self._scratch, self._tell, environment, purpose)

    def _opened(self, subject: Subject, record: Record, *, poison: bool) -> tuple[Gates, list[dict[str, Any]]]:
        """The task loaded and the candidate imported there; gates and configurations."""
        place = subject.folder / "task"
        taskfile.copy_without_references(self._bench.folder, place)
        file = subject.folder / "candidate.py"
        file.write_text(self._text, encoding="utf-8")
        gates = Gates(self._bench, subject, record, interpreted=self._interpreted)
        payload: dict[str, Any] = {"folder": str(place), "device": self._bench.options.device, "poison": poison}
        payload["observe"] = poison and self._launches_kernels
        payload |= {"scale": [call.scale for call in self._bench.calls], "threads": self._bench.threads}
        gates.ask("open", payload, "loading the task")
        try:
            answered = subject.ask("bring", {"candidate": str(file)}, _IMPORT_TIMEOUT_S)
        except Gone as gone:
            kind = {"timeout": "timeout", "oom": "oom"}.get(gone.kind, "import")
            raise Stop("rejected", kind, f"the process ended while the candidate was imported: {gone}") from gone
        for one in answered.violations:
            raise Stop("rejected", one["rule"], one["detail"])
        if answered.error is not None:
            error = answered.error
            raise Stop(
                "rejected",
                "import",
                f"importing it raised {error['type']}: {error['text'][0]}",
                [error.get("line") or "", *error["text"][1:]],
            )
        return gates, answered.facts["configs"]

    def close(self) -> None:
        for subject in self._subjects.values():
            subject.end()

    # ---- steps ------------------------------------------------------------------------------------------------------

    def run(self, bench: Bench) -> None:
        """Every gate in order; raises Stop at the first fault, fills `findings` on the way."""
        self._bench = bench
        found, record = self.findings, self.findings.record
        gates, configs = self._opened(self._subjects["correctness"], record, poison=True)
        record.gates.append("import")
        if len(configs) > MOST_CONFIGS:
            found.lines.append(f"only the first {MOST_CONFIGS} of {len(configs)} configurations are tried")
        usable = self._each_config(gates, configs[:MOST_CONFIGS])
        if self._measures and "timing" not in self._subjects:
            self._begin("timing")  # it starts while other gates run
        timing = self._subjects.get("timing")
        found.config = usable[0]
        record.proven.clear()
        stopwatch = None
        if len(usable) > 1 and timing is not None:
            stopwatch = self._stopwatch(gates, timing, found.config)
            found.config, lines = stopwatch.race(usable, self._bench.options.seconds / 3)
            found.lines += lines
        gates.prepare(found.config)
        self._observe_language(gates, found.config)
        self._compile(gates)
        self._all_gates(gates, found.config)
        self._await_compiled()
        if timing is not None:
            if stopwatch is None:
                stopwatch = self._stopwatch(gates, timing, found.config)
            found.timed = stopwatch.measure(found.config, self._bench.options.seconds / 2)
            record.gates.append("timing")

    def _each_config(self, gates: Gates, configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Configurations that are right on the captured calls. A wrong one ends the judgement; one that does not fit is left out."""
        usable, first = [], None
        for config in configs:
            try:
                gates.prepare(config)
                gates.captured()
                usable.append(config)
            except Stop as stop:
                if len(configs) == 1 or stop.kind not in ("resources", "compile"):
                    raise stop if len(configs) == 1 else _named(stop, config) from stop
                self.findings.lines.append(f"configuration {config}: left out, {stop.reason}")
                first = first or stop
        if not usable:
            assert first is not None
            raise first
        return usable

    def _all_gates(self, gates: Gates, config: dict[str, Any]) -> None:
        gates.prepare(config)
        gates.start_clock()
        gates.captured()
        gates.determinism()
        gates.fresh_values()
        gates.fresh_shapes()
        gates.other_strides()
        gates.other_weights(config)
        gates.long_run()

    def _stopwatch(self, correctness: Gates, timing: Subject, config: dict[str, Any]) -> Stopwatch:
        """The timing process, ready, with the captured calls that the candidate accepts."""
        correctness.prepare(config)
        accepted = [call for call in self._bench.calls if correctness.check(call) is not None]
        gates, _ = self._opened(timing, Record(notes=self.findings.timing_notes), poison=False)
        return Stopwatch(self._bench, gates, accepted)

    def _observe_language(self, gates: Gates, config: dict[str, Any]) -> None:
        names = [f"c{self._bench.calls.index(call)}" for call in different(self._bench.calls, _LANGUAGE_CALLS)]
        facts = gates.ask("language", {"names": names, "config": config}, "observing kernels").facts
        self._launches = [one for one in facts["launches"] if not one.get("error")]
        if not self._launches:
            self.findings.language = "torch"
        else:
            self.findings.language = "mixed" if facts["heavy"] else "triton"

    def _compile(self, gates: Gates) -> None:
        """Have the kernels compiled for every wanted GPU, without a GPU; other gates run meanwhile."""
        if not self._launches:
            return
        for capability in self._bench.capabilities():
            self._compiling[capability] = name = f"compiled-{capability}.json"
            facts: dict[str, Any] = {"candidate": str(gates.subject.folder / "candidate.py"), "launches": self._launches}
            self._tell({"compile": {**facts, "capability": capability, "reply": str(self._scratch / name)}})

    def _await_compiled(self) -> None:
        for capability, name in self._compiling.items():
            self._read_compiled(_awaited(self._files, name), capability)
        if self._compiling:
            self.findings.record.gates.append("compile")

    def _read_compiled(self, answer: dict[str, Any], capability: int) -> None:
        facts = answer.get("ok")
        if facts is None:
            raise Stop("failed", "compile", f"its kernels can't be compiled for sm_{capability}: {answer.get('reason', 'no answer')}")
        for one in facts["kernels"]:
            self.findings.kernels.append(
                {key: one.get(key) for key in ("kernel", "target", "registers", "shared_bytes", "spill_bytes", "tensor_cores")}
            )
            limit = self._bench.options.shared_bytes
            if limit is not None and (one.get("shared_bytes") or 0) > limit:
                text = f"{one['kernel']} needs {one['shared_bytes']} bytes of shared memory; a block has {limit} on the target"
                raise Stop("rejected", "shared_memory", text)
            if one.get("spill_bytes"):
                self.findings.lines.append(f"{one['kernel']} spills {one['spill_bytes']} bytes of registers on {one['target']}")
        for one in facts["errors"]:
            outcome = "rejected" if one["code"] == "shared_memory" else "failed"
            raise Stop(outcome, one["code"], f"for {one['target']}: {one['text']}")
        self.findings.lines += [f"{one['kernel']} was not compiled for sm_{capability}: {one['reason']}" for one in facts["skipped"]]

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def passed(self, seconds: float) -> dict[str, Any]:
        found, record = self.findings, self.findings.record
        timed = found.timed
        if timed is not None:
            said = f"right on {counted(len(record.proven), 'accepted call')}; {timed.speedup:.3f} times the speed of the original"
        elif self._interpreted:
            said = f"right on {counted(len(record.proven), 'accepted call')}; not measured: interpreted, since there is no GPU here"
        else:
            said = f"right on {counted(len(record.proven), 'accepted call')}; not measured"
        observations = [self._bench.observation(call) for call in record.proven]
        return {
            "outcome": "passed",
            "kind": "passed",
            "reason": said,
            "timing": None if timed is None else timed.facts(),
            "speedup": None if timed is None else timed.speedup,
            "ci95": None if timed is None else timed.ci95,
            "proven_domain": domain.merge(observations, effects=self._bench.changes_anything()),
            "config": found.config,
            **self._common(seconds, []),
        }

    def ended(self, stop: Stop, seconds: float) -> dict[str, Any]:
        return {"outcome": stop.outcome, "kind": stop.kind, "reason": stop.reason, **self._common(seconds, list(stop.details))}

    def _common(self, seconds: float, details: list[str]) -> dict[str, Any]:
        found, record = self.findings, self.findings.record
        bench = getattr(self, "_bench", None)
        lines = [line for line in details if line]
        if record.worst_call:
            lines.append(f"largest error so far: {record.worst:.3g} of its allowance, in {record.worst_call}")
        lines += [*record.notes, *found.lines, *found.timing_notes]
        if record.declined:
            lines.append(f"declined by accepts, and so outside the proven domain: {counted(record.declined, 'call')}")
        if bench is not None and bench.dropped:
            lines.append(f"dropped, because the original can't run them: {counted(bench.dropped, 'made input')}")
        if found.timed is not None:
            lines.append(f"first call {found.timed.first_ms:.3g} ms more than once per call; method: {found.timed.method}")
        return {
            "language": found.language,
            "feedback": [line[:500] for line in lines[:MOST_FEEDBACK]],
            "gates": record.gates,
            "kernels": found.kernels,
            "seconds": seconds,
        }


def _named(stop: Stop, config: dict[str, Any]) -> Stop:
    return Stop(stop.outcome, stop.kind, f"with configuration {config}: {stop.reason}", stop.details)


def _awaited(folder: Folder, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + _COMPILE_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            return dict(json.loads(folder.end_of(name, _MOST_ANSWER_BYTES)))
        except (OSError, ValueError, TypeError, RecursionError):
            time.sleep(0.02)
    return {"reason": f"no answer within {_COMPILE_TIMEOUT_S:g} s"}


def _imports_triton(text: str) -> bool:
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    imported = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(name.partition(".")[0] == "triton" for name in imported)


def candidate_text(path: Path) -> str:
    """The source. Raises Refused for a file that can't be read as UTF-8."""
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("bad_candidate", f"{path} can't be read as UTF-8 text ({error})") from error


class Judge:
    """Keeps the last task ready: the next candidate for it is judged with other made inputs, but the same references."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._key: tuple[str, int, str | None] | None = None
        self._bench: Bench | None = None

    def judge(self, payload: dict[str, Any]) -> dict[str, Any]:
        """A verdict as plain data. Raises Refused."""
        started = time.perf_counter()
        try:
            options = Options.of(payload.get("options", {}))
        except (ValueError, TypeError) as error:
            raise Refused("bad_options", str(error)) from error
        task, text = Path(payload["task"]), candidate_text(Path(payload["candidate"]))
        scratch = Path(tempfile.mkdtemp(prefix="j", dir=options.scratch))
        try:
            facts = self._facts(task)
            judgement = Judgement(text, scratch, self._tell, self._device(task, facts, options))
            try:
                judgement.start(measure=options.measure, early=str(facts.get("defined_in", "")))
                judgement.run(self._ready(task, options))
                return judgement.passed(time.perf_counter() - started)
            except Stop as stop:
                return judgement.ended(stop, time.perf_counter() - started)
            finally:
                judgement.close()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @staticmethod
    def _facts(folder: Path) -> dict[str, Any]:
        try:
            return taskfile.read_facts(folder)
        except taskfile.BadTask as error:
            raise Refused("bad_task", str(error)) from error

    @staticmethod
    def _device(folder: Path, facts: dict[str, Any], options: Options) -> str:
        device = str(options.device or facts.get("device", "cpu")).partition(":")[0]
        if device == "cuda" and not torch.cuda.is_available():
            raise Refused("no_device", f"{folder} needs a CUDA device and this machine has none; judge it where it was extracted")
        return device

    def _ready(self, folder: Path, options: Options) -> Bench:
        key = (str(folder.resolve()), options.seed, options.device)
        if self._key != key or self._bench is None:
            try:
                self._bench = Bench.open(folder, options)
            except taskfile.BadTask as error:
                raise Refused("bad_task", str(error)) from error
            except NotReproducible as error:
                raise Refused("task_not_reproducible", str(error)) from error
            self._key = key
        self._bench.options = options
        self._bench.dropped = 0
        return self._bench


def main() -> None:
    """Answer `judge` requests until the parent closes the channel."""
    confine()
    warnings.simplefilter("ignore")
    channel = Channel.inherited()
    judge = Judge(channel.event)
    for operation, payload in channel.requests():
        if operation != "judge":
            channel.error("unknown_operation", f"{operation!r} is no operation of the judge; it knows judge")
            continue
        try:
            channel.ok(judge.judge(payload))
        except Refused as refused:
            channel.error(refused.kind, str(refused))
        except Broken as broken:
            channel.error("judge_broken", str(broken))


if __name__ == "__main__":
    main()
