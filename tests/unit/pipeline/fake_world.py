"""A live host, a judge and a confirmation that answer at once, around the real pipeline and the real store.

Run as a program it advances one job and can be killed at a point: fake_world.py FOLDER JOB [KIND:STAGE:COUNT].
"""

import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm4llm.assets import Seed
from llm4llm.kit import FrozenClock
from llm4llm.pipeline.advance import advance
from llm4llm.pipeline.steps import STEPS, Plan, Step
from llm4llm.sandbox.answer import Failed, Ok, OnEvent
from llm4llm.schema.acceptance import Patch, Trialled
from llm4llm.schema.event import Event
from llm4llm.schema.job import Budget, Job, Request
from llm4llm.schema.measurement import Paired
from llm4llm.schema.reason import Reason
from llm4llm.schema.target import TargetProfile
from llm4llm.schema.task import Task
from llm4llm.schema.verdict import Incorrect, Passed, Verdict
from llm4llm.service.jobs import submit
from llm4llm.stages.tools import Tools
from llm4llm.store import Store, open_store

PAIRS = {"baseline_ms": [10.0, 10.1, 9.9, 10.0, 10.2, 10.0], "patched_ms": [5.0, 5.1, 4.9, 5.0, 5.0, 5.1]}


def root(**changes: Any) -> dict[str, Any]:
    facts = {"id": "r0", "module_class": "m.Net", "fingerprint": "f", "parameters": 1, "parameter_bytes": 4}
    return {**facts, "devices": ["cpu"], "dtypes": ["float32"], "training": False, **changes}


def spot(name: str, share: float, **changes: Any) -> dict[str, Any]:
    times = {"calls": 4, "host_ms": 10 * share, "self_host_ms": 1.0, "share": share, "self_share": share, "bound": "unknown"}
    ceiling = 1 / (1 - share)
    names = {"id": f"h_{name}", "root": "r0", "module_class": f"m.{name}", "phase": "forward", "family": name, "paths": [name.lower()]}
    return {**names, **times, "ceiling": ceiling, **changes}


def captured(**changes: Any) -> dict[str, Any]:
    driver = {"id": "d0", "root": "r0", "method": "forward", "signature": "s", "count": 3, "wall_ms": [3.0]}
    facts = {"end": {"kind": "returned", "exit_code": 0}, "roots": [root()], "drivers": [driver], "wall_ms": 100.0}
    return {**facts, "notes": [], "partial": False, **changes}


@dataclass
class FakeHost:
    """Answers from tables; `seconds` of each operation pass on the clock."""

    clock: FrozenClock
    capture: dict[str, Any] | Failed = field(default_factory=captured)
    hotspots: list[dict[str, Any]] = field(default_factory=lambda: [spot("Slow", 0.8), spot("Other", 0.1), spot("Tiny", 0.001)])
    matches: dict[str, list[str]] = field(default_factory=lambda: {"h_Slow": ["good", "wrong"]})
    answers: dict[str, Ok | Failed] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def request(self, op: str, payload: dict[str, Any], timeout_s: float, on_event: OnEvent | None = None) -> Ok | Failed:
        self.asked.append(op)
        self.clock.sleep(self.seconds.get(op, 1.0))
        if op in self.answers:
            return self.answers[op]
        answer: dict[str, Any] | Failed = getattr(self, f"_{op}")(payload)
        return answer if isinstance(answer, Failed) else Ok(answer)

    def _capture(self, _: dict[str, Any]) -> dict[str, Any] | Failed:
        return self.capture

    def _environment(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"python": "3.11", "platform": "linux", "cpu": "c", "cpu_threads": 1, "torch": "2"}

    def _profile(self, _: dict[str, Any]) -> dict[str, Any]:
        end_to_end = {"samples_ms": [10.0, 10.1], "method": "replayed"}
        return {"end_to_end": end_to_end, "hotspots": self.hotspots, "phases": [], "method": "profiler", "coverage": 1.0}

    def _match(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"matches": self.matches, "errors": {}}

    def _extract(self, payload: dict[str, Any]) -> dict[str, Any]:
        spots = {found["id"]: found for found in self.hotspots}
        return {"tasks": [self._extracted(spots[name], payload["out"]) for name in payload["hotspots"]]}

    def _extracted(self, found: dict[str, Any], out: str) -> dict[str, Any]:
        names = {name: found[name] for name in ("module_class", "root", "phase", "share", "family")}
        own = {"id": f"task_{found['family']}", "hotspot": found["id"], "module_path": found["paths"][0], "calls": 2, "device": "cpu"}
        return {**names, **own, "dtypes": ["float32"], "folder": f"{out}/{found['family']}"}

    def _trial(self, payload: dict[str, Any]) -> dict[str, Any]:
        site = {"path": "slow", "hits": 4, "fallbacks": 0, "fallback_reasons": {}}
        checks = [{"name": "outputs", "passed": True, "detail": "equal"}]
        return {"checks": checks, "sites": {patch["candidate"]: [site] for patch in payload["patches"]}, **PAIRS, "restored": True}


@dataclass
class FakeJudge:
    """Passes the file that says it is good, with a gain; nothing else."""

    clock: FrozenClock
    asked: list[str] = field(default_factory=list)
    held_out_verdict: Verdict | None = None
    seconds: float = 1.0

    def __call__(self, task: Task, candidate_file: Path, *, time_limit_s: float, held_out: bool = False) -> Verdict:
        text = candidate_file.read_text()
        self.asked.append(("held out: " if held_out else "") + text.strip())
        self.clock.sleep(min(self.seconds, time_limit_s))
        if held_out and self.held_out_verdict is not None:
            return self.held_out_verdict
        if "good" not in text:
            return Incorrect(kind="numerical", reason="off by one")
        timing = Paired(**PAIRS, method="fake", ci95=(1.9, 2.1), speedup=2.0)
        return Passed(reason="right", timing=timing, speedup=2.0, ci95=(1.9, 2.1), proven_domain={"rank": 2}, config={})


@dataclass
class World:
    """One store with fakes around it; `advance` goes as a worker would."""

    folder: Path
    store: Store
    clock: FrozenClock
    host: FakeHost
    judge: FakeJudge
    fresh: str = "keep"
    events: list[Event] = field(default_factory=list)
    device: Callable[[], AbstractContextManager[None]] = nullcontext
    request: Request | None = None
    steps: tuple[Step, ...] = STEPS

    def submit(self, **changes: Any) -> Job:
        script = self.folder / "script.py"
        script.write_text("print(1)\n")
        facts = {"script": str(script), "script_sha256": "", "working_directory": str(self.folder), "python": sys.executable}
        request = Request.model_validate({**facts, "budget": Budget(seconds=600), **changes})
        return submit(request, self.store, self.clock, random.Random(0))

    def confirm(self, patches: tuple[Patch, ...], time_limit_s: float, excuse: str | None = None) -> Trialled:
        timing = Paired(**PAIRS, method="fake", ci95=(1.9, 2.1), speedup=2.0)
        reason = Reason(code="gain" if self.fresh == "keep" else "output_differs", text="as told")
        names = tuple(patch.candidate for patch in patches)
        return Trialled.model_validate(
            {"patches": names, "checks": (), "sites": {}, "timing": timing, "decision": self.fresh, "reason": reason}
        )

    def plan(self) -> Plan:
        seeds = []
        for name in ("good", "wrong"):
            file = self.folder / "seeds" / name / "candidate.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f'"""{name}"""\n')
            seeds.append(Seed(name, file))
        return Plan(seeds=tuple(seeds), resolve_target=target)

    def advance(self, job: Job, hear: Callable[[Event], None] | None = None) -> Job:
        def progress(event: Event) -> None:
            self.events.append(event)
            if hear is not None:
                hear(event)

        tools = Tools(
            host=self.host,
            judge=self.judge,
            confirm=self.confirm,
            clock=self.clock,
            progress=progress,
            blobs=self.store.blobs,
            scratch=self.folder / "scratch" / job.id,
            deadline=float("inf"),
            cancelled=lambda: self.store.jobs.cancel_asked(job.id),
            device=self.device,
            request=self.request,
        )
        tools.scratch.mkdir(parents=True, exist_ok=True)
        return advance(job.id, self.store, tools, self.plan(), self.steps)


def target(name: str, gpu: str | None, capability: str | None) -> TargetProfile:
    return TargetProfile(name="cpu", device="cpu", source="test")


def make_world(folder: Path) -> World:
    clock = FrozenClock()
    store = open_store(f"sqlite:///{folder}/jobs.db", folder / "blobs")
    return World(folder, store, clock, FakeHost(clock), FakeJudge(clock))


def main() -> None:
    folder, job_id = Path(sys.argv[1]), sys.argv[2]
    world = make_world(folder)
    kill_at = sys.argv[3].split(":") if len(sys.argv) > 3 else None
    heard = 0

    def hear(event: Event) -> None:
        nonlocal heard
        if kill_at and event.kind == kill_at[0] and event.stage == kill_at[1]:
            heard += 1
            if heard == int(kill_at[2]):
                os.kill(os.getpid(), signal.SIGKILL)

    world.advance(world.store.jobs.get(job_id), hear)
    print("asked:", *world.host.asked, *world.judge.asked, sep="\n")


if __name__ == "__main__":
    main()
