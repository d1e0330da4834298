"""Have one candidate judged: a judge process, and the candidate and compiler processes that it asks for."""

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from llm4llm.errors import BadArguments, BadCandidate, BadTaskFolder, JudgeTimeout, StageError, UserError
from llm4llm.kit import write_atomic
from llm4llm.sandbox import Child, ChildSpec, Failed, Files, Limits, Ok, Sandbox, scrubbed
from llm4llm.schema.verdict import Verdict

_VERDICT: TypeAdapter[Verdict] = TypeAdapter(Verdict)
_FATE_TIMEOUT_S = 3.0
_COMPILE_TIMEOUT_S = 150.0
_TIME_LIMIT_S = 900.0
_MEMORY_SHARE = 0.6  # of the machine's, for one child
_FILE_BYTES = 4 << 30
_DISK_BYTES = 16 << 30
_PROCESSES = 64


@dataclass
class _Place:
    """Where the processes of one judgement may write, and what they may read in hidden folders."""

    folder: Path
    visible: tuple[Path, ...] = ()

    def files(self, sandbox: Sandbox) -> Files:
        return Files(hidden=sandbox.hidden, visible=self.visible, writable=(self.folder,))

    def environment(self) -> dict[str, str]:
        """Caches of compilers lie there too: what one candidate leaves in a cache must not become part of another."""
        caches = {name: str(self.folder / name.lower()) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")}
        return {**scrubbed(os.environ), "TMPDIR": str(self.folder), **caches}


@dataclass
class _Started:
    """The children of one judgement, by the socket that they connect to."""

    sandbox: Sandbox
    python: str
    scratch: Path
    time_limit_s: float
    children: dict[str, Child] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def hear(self, event: dict[str, Any]) -> None:
        """An event of the judge; anything unknown is progress and nobody listens to it here."""
        if "spawn" in event:
            self._spawn(event["spawn"])
        elif "reap" in event:
            self._reap(event["reap"]["socket"])
        elif "compile" in event:
            # the compiler takes seconds: the judge goes on with other gates meanwhile
            thread = threading.Thread(target=self._compile, args=(event["compile"],), name="compile")
            self.threads.append(thread)
            thread.start()

    def spec(self, module: str, folder: Path, environment: Mapping[str, str]) -> ChildSpec:
        """Candidates and compilers run generated code: with limits, without network, and writing into one folder alone."""
        place = _Place(folder)
        limits = Limits(
            wall_s=self.time_limit_s,
            memory_bytes=int(_MEMORY_SHARE * _machine_memory_bytes()),
            processes=_PROCESSES,
            file_bytes=_FILE_BYTES,
            disk_bytes=_DISK_BYTES,
            disk_folders=(folder,),
            network=False,
        )
        return ChildSpec(
            module=module,
            python=self.python,
            working_directory=folder,
            environment={**place.environment(), **environment},
            limits=limits,
            files=place.files(self.sandbox),
        )

    def _spawn(self, wanted: dict[str, Any]) -> None:
        socket = str(wanted["socket"])
        try:
            # the judgement's own folder, above that of the one process
            folder = Path(socket).parent.parent
            self.children[socket] = self.sandbox.start(self.spec(wanted["module"], folder, wanted["environment"]))
        except Exception as error:  # the judge waits for a process: it has to hear that there is none
            _write_fate(socket, {"kind": "not_started", "reason": str(error), "exit_code": None, "stderr_tail": ""})

    def _reap(self, socket: str) -> None:
        child = self.children.pop(socket, None)
        if child is None:
            return
        # a candidate process closes its channel at once, so this asks nothing: it ends the child and says why it ended
        fate = child.request("fate", {}, _FATE_TIMEOUT_S)
        assert isinstance(fate, Failed)
        facts = {"kind": fate.kind, "reason": fate.reason, "exit_code": fate.exit_code, "stderr_tail": fate.stderr_tail}
        child.kill()
        _write_fate(socket, facts)

    def _compile(self, wanted: dict[str, Any]) -> None:
        answer: dict[str, Any]
        try:
            # the compiler must not interpret, whatever the user's environment says
            spec = self.spec("llm4llm.harness.kernels", Path(wanted["reply"]).parent, {"TRITON_INTERPRET": "0"})
            with self.sandbox.start(spec) as child:
                payload = {key: wanted[key] for key in ("candidate", "launches", "capability")}
                made = child.request("compile", payload, _COMPILE_TIMEOUT_S)
            answer = {"ok": made.result} if isinstance(made, Ok) else {"kind": made.kind, "reason": made.reason}
        except Exception as error:  # the judge waits for an answer
            answer = {"kind": "not_started", "reason": str(error)}
        with contextlib.suppress(OSError):  # the judge may have given up and removed its folder
            write_atomic(Path(wanted["reply"]), json.dumps(answer))

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        for thread in self.threads:
            thread.join()


class KeptJudge:
    """A judge process that stays for the next candidate of the same task, since starting one takes seconds, and with a GPU half a minute.

    The judge never runs generated code; every candidate gets fresh processes of its own. Owned by the thread that uses it.
    """

    def __init__(self, sandbox: Sandbox, python: str) -> None:
        self._sandbox, self._python = sandbox, python
        self._open = contextlib.ExitStack()
        self._task: Path | None = None
        self._scratch = Path()
        self._child: Child | None = None

    def __call__(self, task_folder: Path, candidate_file: Path, options: Mapping[str, Any]) -> Verdict:
        """One verdict.

        `options`: seed, seconds (for timing), gate_seconds, call_timeout_s, capabilities, shared_bytes, device, measure, and
        `time_limit_s` for the whole judgement. Raises BadTaskFolder, BadCandidate or BadArguments for unusable input and StageError if the
        judge itself fails.
        """
        task_folder, candidate_file = task_folder.resolve(), candidate_file.resolve()
        _check_files(task_folder, candidate_file)
        given = dict(options)
        time_limit_s = float(given.pop("time_limit_s", _TIME_LIMIT_S))
        child = self._ready(task_folder)
        started = _Started(self._sandbox, self._python, self._scratch, time_limit_s)
        copied = self._scratch / "candidate.py"  # the judge may not see where candidates are kept
        copied.write_bytes(candidate_file.read_bytes())
        payload = {"task": str(task_folder), "candidate": str(copied), "options": {**given, "scratch": str(self._scratch)}}
        try:
            answer = child.request("judge", payload, time_limit_s, started.hear)
        finally:
            started.close()
        if isinstance(answer, Ok):
            return _VERDICT.validate_python(answer.result)
        raise _refusal(answer, task_folder, candidate_file)

    def close(self) -> None:
        """End the process. Idempotent; the next verdict starts another."""
        self._task = self._child = None
        self._open.close()

    def _ready(self, task_folder: Path) -> Child:
        if self._child is not None and self._task == task_folder and self._child.alive:
            return self._child
        self.close()
        # sockets' paths are limited to about 100 bytes, so the scratch folder lies directly below the system's
        self._scratch = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="l4-")))
        place = _Place(self._scratch, (task_folder,))
        spec = ChildSpec(
            module="llm4llm.harness.judge",
            python=self._python,
            working_directory=self._scratch,
            environment=place.environment(),
            limits=Limits(file_bytes=_FILE_BYTES),
            files=place.files(self._sandbox),
        )
        self._child = self._open.enter_context(self._sandbox.start(spec))
        self._task = task_folder
        return self._child

    def __enter__(self) -> "KeptJudge":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def judge_candidate(task_folder: Path, candidate_file: Path, options: Mapping[str, Any], sandbox: Sandbox, python: str) -> Verdict:
    """One verdict from fresh processes; see KeptJudge for options and errors."""
    with KeptJudge(sandbox, python) as judge:
        return judge(task_folder, candidate_file, options)


def _check_files(task_folder: Path, candidate_file: Path) -> None:
    """Cheap refusals before a process is started."""
    if not (task_folder / "task.json").is_file():
        raise BadTaskFolder(str(task_folder), "there is no task.json in it" if task_folder.is_dir() else "there is no such folder")
    try:
        candidate_file.read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        raise BadCandidate(str(candidate_file), "there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadCandidate(str(candidate_file), str(error)) from error


def _refusal(answer: Failed, task_folder: Path, candidate_file: Path) -> UserError | StageError:
    if answer.kind in ("bad_task", "task_not_reproducible", "no_device"):
        return BadTaskFolder(str(task_folder), answer.reason)
    if answer.kind == "bad_candidate":
        return BadCandidate(str(candidate_file), answer.reason)
    if answer.kind == "bad_options":
        return BadArguments(answer.reason, "see the options of llm4llm judge")
    if answer.kind == "timeout":
        return JudgeTimeout(answer.reason)
    tail = answer.stderr_tail.strip().splitlines()
    said = f" ({tail[-1]})" if tail else ""
    return StageError(f"the judge ended without a verdict: {answer.kind}, {answer.reason}{said}", "judge the candidate again")


def _machine_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _write_fate(socket: str, facts: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        write_atomic(Path(socket).with_suffix(".fate"), json.dumps(facts))
