"""judge: one verdict on one candidate."""

import json
from dataclasses import dataclass
from pathlib import Path

from llm4llm.assets import AUTO
from llm4llm.cli import say
from llm4llm.cli.opened import settings_with_home
from llm4llm.cli.request import interpreter
from llm4llm.errors import BadTaskFolder
from llm4llm.kit import parse_duration
from llm4llm.sandbox import Sandbox
from llm4llm.schema.verdict import Passed, Verdict
from llm4llm.stages.verdict.judging import judge_candidate
from llm4llm.worker.judge import judge_options

_NOTHING_TO_COMPILE_FOR = "cpu"


@dataclass(frozen=True)
class How:
    """How to judge."""

    target: str
    time_limit: str
    python: str | None


def judge(task: Path, candidate: Path, how: How, as_json: bool) -> int:
    """Print the verdict; 0 passed, 1 not passed. BadTaskFolder, BadCandidate for what can't be judged at all."""
    with Sandbox(settings_with_home().home) as sandbox:
        wanted = _target(task) if how.target == AUTO else how.target
        options = judge_options(wanted or _NOTHING_TO_COMPILE_FOR, parse_duration(how.time_limit))
        verdict = judge_candidate(task, candidate, options, sandbox, interpreter(how.python))
    if as_json:
        say.result(json.dumps(verdict.model_dump(mode="json")))
    else:
        _print(verdict)
    return say.EXIT_OK if isinstance(verdict, Passed) else say.EXIT_FAILED


def _target(task: Path) -> str | None:
    """The target that the task was made for; None if it names none. BadTaskFolder if that can't be read."""
    try:
        facts = json.loads((task / "task.json").read_text(encoding="utf-8"))
        return None if facts.get("target") is None else str(facts["target"])
    except (OSError, ValueError, AttributeError) as error:
        why = "there is no task.json in it" if isinstance(error, OSError) else "its task.json is not what llm4llm tasks writes"
        raise BadTaskFolder(str(task), why) from error


def _print(verdict: Verdict) -> None:
    kind = "" if verdict.kind == verdict.outcome else f" ({verdict.kind})"
    say.line(f"{verdict.outcome}{kind}: {verdict.reason}")
    if isinstance(verdict, Passed) and verdict.speedup is not None and verdict.ci95 is not None:
        low, high = verdict.ci95
        config = f", with {json.dumps(verdict.config, sort_keys=True)}" if verdict.config else ""
        say.result(f"  {verdict.speedup:.2f}x on its module, 95 % interval {low:.2f} to {high:.2f}{config}")
    if verdict.language != "unknown":
        say.result(f"  language: {verdict.language}")
    for kernel in verdict.kernels:
        facts = (("registers", kernel.registers), ("bytes of shared memory", kernel.shared_bytes), ("bytes spilled", kernel.spill_bytes))
        shown = ", ".join(f"{number} {name}" for name, number in facts if number is not None)
        say.line(f"  kernel {kernel.kernel} for {kernel.target}: {shown}")
    for line in verdict.feedback:
        for part in line.splitlines():
            say.line(f"  {part}")
