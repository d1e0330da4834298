"""Run the user's script once, unmodified, and see what it makes its models do."""

import platform
import re
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from llm4llm.errors import StageError
from llm4llm.kit import tail
from llm4llm.schema.capture import Capture, ScriptEnd
from llm4llm.schema.environment import Environment
from llm4llm.schema.job import Job, StageName
from llm4llm.schema.target import TargetProfile
from llm4llm.stages.hearing import Heard, Hearer, words
from llm4llm.stages.tools import Failed, Ok, Tools

GRACE_S = 30.0  # the host stops the script by itself at its limit; this is for one that can't
ENVIRONMENT_S = 120.0
_GONE = ("died", "oom", "timeout", "processes")  # the host's process has ended with the script
_USAGE = re.compile(r"^usage\b", re.IGNORECASE | re.MULTILINE)

ResolveTarget = Callable[[str, str | None, str | None], TargetProfile]


def run(job: Job, resolve: ResolveTarget, tools: Tools) -> Capture:
    """Roots, driver calls, how the script ended, and where it ran.

    A script that fails, hangs or takes its process with it is a value; StageError if the host itself is at fault.
    """
    limit_s = tools.seconds_left()
    hearer = Hearer(job, StageName.CAPTURE, tools.progress, _heard)
    answer = tools.host.request("capture", {"time_limit_s": limit_s}, limit_s + GRACE_S, hearer)
    facts = _ended_host(answer, limit_s) if isinstance(answer, Failed) else answer.result
    environment = _environment(tools)
    try:
        place = Environment.model_validate({**environment, "target": ""})
        target = resolve(job.request.target, place.gpu, place.gpu_capability)
        told = {name: facts[name] for name in Capture.model_fields if name in facts}
        capture = Capture.model_validate({**told, "environment": place.model_copy(update={"target": target.name})})
        return capture.model_copy(update={"end": _with_usage(capture.end, tail(tools.scratch / "script.stderr"))})
    except ValidationError as error:
        raise StageError(f"the live host's answer can't be read ({error.errors()[0]['msg']})", "this is a fault of llm4llm") from error


def _ended_host(failed: Failed, limit_s: float) -> dict[str, Any]:
    """Facts of a run whose process is gone: how it ended is all there is."""
    if failed.kind not in _GONE:
        raise StageError(f"the script could not be run: {failed.reason}", failed.stderr_tail.strip().split("\n")[-1])
    kind = "time_up" if failed.kind == "timeout" else "died"
    end = {"kind": kind, "exit_code": failed.exit_code, "error": failed.reason}
    return {"end": end, "roots": [], "drivers": [], "wall_ms": 1e3 * limit_s if kind == "time_up" else 0.0, "partial": True}


def _with_usage(end: ScriptEnd, stderr: str) -> ScriptEnd:
    """An exit with code 2 after a usage text is how command lines ask for arguments (argparse, click): keep what it asked for."""
    if end.exit_code != 2 or not _USAGE.search(stderr):
        return end
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return end.model_copy(update={"error": f"usage: {lines[-1]}"})


def _environment(tools: Tools) -> dict[str, Any]:
    answer = tools.host.request("environment", {}, ENVIRONMENT_S)
    if isinstance(answer, Ok):
        return answer.result
    # the script took its process with it: what can be told from outside
    unknown = {"cpu": platform.processor() or platform.machine(), "cpu_threads": 1, "torch": "unknown"}
    return {"python": "unknown", "platform": platform.platform(), **unknown}


def _heard(said: dict[str, Any]) -> Heard:
    driver = words(said.get("driver"), "root", "method", "signature")
    if driver:
        return "new kind of call: {root}.{method}({signature})".format(**{"root": "", "method": "", "signature": "", **driver}), {
            "driver": driver
        }
    note = words(said.get("note"), "code", "text")
    return note.get("text", "the script goes on"), {"note": note} if note else {}
