"""A worker whose stages are the real ones around a host and a judge that answer at once, with pauses and real children in between."""

import os
import random
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit" / "pipeline")]

from fake_world import FakeHost, FakeJudge, World, target  # noqa: E402

from llm4llm.assets import Seed  # noqa: E402
from llm4llm.kit import FrozenClock, set_up_logs  # noqa: E402
from llm4llm.pipeline.advance import advance  # noqa: E402
from llm4llm.pipeline.steps import STEPS, Bench, Plan, Step  # noqa: E402
from llm4llm.sandbox import ChildSpec, Failed  # noqa: E402
from llm4llm.schema.job import Job, StageName  # noqa: E402
from llm4llm.settings import Settings  # noqa: E402
from llm4llm.stages.tools import Tools  # noqa: E402
from llm4llm.worker.held import Held  # noqa: E402
from llm4llm.worker.loop import Rounds  # noqa: E402
from llm4llm.worker.process import run_worker  # noqa: E402

TOKEN = "CHAOS_TOKEN"  # a variable by which every process of a run is known
DEVICE = "chaos/cpu"
_WITH_CHILD = frozenset({StageName.CAPTURE, StageName.EPISODE, StageName.ACCEPTANCE})


@dataclass(frozen=True)
class Pace:
    """How long things take, in seconds."""

    lease_s: float = 1.5
    step_s: float = 0.06  # at most, per pause
    max_attempts: int = 10_000  # whoever kills workers at random says nothing about their jobs
    stuck_in: StageName | None = None  # its child answers after minutes, unless there is a file named `go` in the home folder


def main(url: str, folder: str, token: str, pace: Pace) -> None:
    """Work until asked to go."""
    os.environ[TOKEN] = token
    set_up_logs(False, "error")
    home = Path(folder)
    settings = Settings(home=home, database_url=url, lease_s=pace.lease_s, max_attempts=pace.max_attempts)
    rng = random.Random()
    run_worker(settings, Rounds(0.05), walk=lambda job, held: walk(job, held, pace, rng))


def walk(job: Job, held: Held, pace: Pace, rng: random.Random) -> Job:
    """The job at its end."""
    held.folder.mkdir(parents=True, exist_ok=True)
    clock = FrozenClock()
    world = World(held.folder, held.store, clock, FakeHost(clock), FakeJudge(clock))
    tools = Tools(
        host=world.host,
        judge=world.judge,
        confirm=world.confirm,
        clock=held.clock,
        progress=held.progress,
        blobs=held.store.blobs,
        scratch=held.folder,
        deadline=float("inf"),
        cancelled=held.cancelled,
        device=lambda: _device(held),
    )
    return advance(job.id, held.store, tools, _plan(held.folder.parent.parent), tuple(_slowed(step, held, pace, rng) for step in STEPS))


def _plan(home: Path) -> Plan:
    seeds = tuple(Seed(name, home / "seeds" / name / "candidate.py") for name in ("good", "wrong"))
    return Plan(seeds=seeds, resolve_target=target)


def _device(held: Held) -> AbstractContextManager[None]:
    return held.device(DEVICE)


def _slowed(step: Step, held: Held, pace: Pace, rng: random.Random) -> Step:
    """The same step with a pause and perhaps a child."""

    def run(bench: Bench) -> Any:
        held.clock.sleep(pace.step_s * rng.random())
        if step.stage in _WITH_CHILD or step.stage is pace.stuck_in:
            _child(held, pace, rng, step.stage is pace.stuck_in)
        return step.run(bench)

    return replace(step, run=run)


def _child(held: Held, pace: Pace, rng: random.Random, stuck: bool) -> None:
    home = held.folder.parent.parent
    seconds = pace.step_s * rng.random()
    if stuck and not (home / "go").exists():
        seconds = 600.0
        (home / "stuck").write_text(held.folder.name)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE), TOKEN: os.environ[TOKEN]}
    child = held.sandbox.start(ChildSpec("chaos_child", sys.executable, held.folder, environment=environment))
    try:
        answer = child.request("work", {"seconds": seconds, "own_session": rng.random() < 0.5}, 900)
        # dead children are part of a fenced run's end; what matters is that nothing is stored after it
        assert not isinstance(answer, Failed) or answer.kind == "died", answer
    finally:
        child.kill()


if __name__ == "__main__":
    # URL HOME TOKEN LEASE_SECONDS STAGE
    main(sys.argv[1], sys.argv[2], sys.argv[3], Pace(lease_s=float(sys.argv[4]), stuck_in=StageName(sys.argv[5])))
