"""The live host as the stages see it: started by its first request, rebuilt when it has died."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm4llm.errors import UserError
from llm4llm.kit import open_plain, open_untrusted, remove_untrusted, sha256_bytes, write_atomic
from llm4llm.sandbox import Child, ChildSpec, Failed, Files, Limits, Ok, OnEvent, Sandbox
from llm4llm.schema.job import Job
from llm4llm.service.script import MAX_BYTES
from llm4llm.worker.scratch import own_folder

MODULE = "llm4llm.harness.host"
MAX_REBUILDS = 3  # of one worker: a host that dies more often dies of what it is asked
GRACE_S = 30.0


class ScriptChanged(UserError):
    code = "script_changed"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is no longer what was handed in", "put the old content back, or submit the new one as a job of its own")


@dataclass(frozen=True)
class HostSetting:
    """What every process that runs the job's script has in common."""

    job: Job
    scratch: Path
    limits: Limits
    script_time_limit_s: float
    files: Files | None = None  # what the script may see and change; None: whatever its owner may


class LiveHost:
    """Implements the stages' Host. Not for use by two threads."""

    def __init__(self, sandbox: Sandbox, setting: HostSetting) -> None:
        self.sandbox = sandbox
        self.setting = setting
        self._child: Child | None = None
        self._rebuilds = 0

    def request(self, op: str, payload: dict[str, Any], timeout_s: float, on_event: OnEvent | None = None) -> Ok | Failed:
        """`capture` always starts a new host; `environment` is answered without the script if there is none; anything else rebuilds it."""
        if op == "capture":
            return self._capture("script", float(payload["time_limit_s"]), on_event)
        if op == "environment" and not self._alive():
            return self._bare(op, payload, timeout_s)
        if not self._alive():
            failed = self._rebuilt()
            if failed is not None:
                return failed
        assert self._child is not None
        return self._noted(self._child.request(op, payload, timeout_s, on_event))

    def close(self) -> None:
        """End the host and everything that the script started."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _alive(self) -> bool:
        return self._child is not None and self._child.alive

    def _capture(self, name: str, limit_s: float, on_event: OnEvent | None) -> Ok | Failed:
        self.close()
        limit_s = min(limit_s, self.setting.script_time_limit_s)
        self._child = self._started(name, limit_s)
        return self._noted(self._child.request("capture", {}, limit_s + GRACE_S, on_event))

    def _rebuilt(self) -> Failed | None:
        """Run the script again, its output kept apart from the first run's; why that failed, or None."""
        if self._rebuilds >= MAX_REBUILDS:
            return Failed("died", f"the live host was built again {MAX_REBUILDS} times and died each time")
        self._rebuilds += 1
        answer = self._capture("rebuilt", self.setting.script_time_limit_s, None)
        return answer if isinstance(answer, Failed) else None

    def _bare(self, op: str, payload: dict[str, Any], timeout_s: float) -> Ok | Failed:
        child = self._started("bare", timeout_s)
        try:
            return child.request(op, payload, timeout_s)
        finally:
            child.kill()

    def _noted(self, answer: Ok | Failed) -> Ok | Failed:
        if isinstance(answer, Failed) and not self._alive():
            self.close()
        return answer

    def _started(self, name: str, limit_s: float) -> Child:
        """A host whose script's standard streams are NAME.stdout and NAME.stderr in the job's folder."""
        setting, request = self.setting, self.setting.job.request
        if _script_sha256(Path(request.script), setting.scratch) != request.script_sha256:
            raise ScriptChanged(request.script)
        setting.scratch.mkdir(parents=True, exist_ok=True)
        for stream in ("stdout", "stderr"):
            # the host appends; an earlier attempt may have been killed half-way
            remove_untrusted(setting.scratch / f"{name}.{stream}")
        facts = {
            "script": request.script,
            "arguments": list(request.arguments),
            "working_directory": request.working_directory,
            "stdout": str(setting.scratch / f"{name}.stdout"),
            "stderr": str(setting.scratch / f"{name}.stderr"),
            "stdin": request.stdin,
            "replay_log": str(setting.scratch / "replay.log"),
            "time_limit_s": limit_s,
        }
        file = own_folder(setting.scratch) / f"{name}.json"
        write_atomic(file, json.dumps(facts))
        spec = ChildSpec(
            module=MODULE,
            python=request.python,
            working_directory=Path(request.working_directory),
            arguments=(str(file),),
            environment=request.environment,
            limits=setting.limits,
            files=setting.files,
        )
        return self.sandbox.start(spec)


def _script_sha256(script: Path, scratch: Path) -> str | None:
    """None if there is no plain file of a script's size any more. An uploaded script lies where it can replace itself by anything."""
    scratch = scratch.absolute()
    try:
        inside = script.is_relative_to(scratch)
        with open_untrusted(scratch, *script.relative_to(scratch).parts) if inside else open_plain(script) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    return None if len(content) > MAX_BYTES else sha256_bytes(content)
