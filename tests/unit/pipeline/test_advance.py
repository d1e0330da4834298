"""The whole path of a job with a host and a judge that answer at once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_world import World, captured, make_world, root, spot

from llm4llm.errors import LeaseLost, StoreUnavailable
from llm4llm.kit import iso
from llm4llm.pipeline.steps import STEPS, Bench
from llm4llm.sandbox.answer import Failed
from llm4llm.schema.base import Frozen
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, StageName
from llm4llm.schema.verdict import Incorrect
from llm4llm.service.jobs import cancel
from llm4llm.service.report import job_report
from llm4llm.stages.hearing import MORE
from llm4llm.store import Fence, Hold

STAGES = [stage.value for stage in StageName]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


def statuses(world: World, job: Job) -> dict[str, tuple[str, str]]:
    return {found["id"]: (found["status"], found["reason_code"]) for found in job_report(world.store, job.id)["hotspots"]}


def test_a_job_that_ends_in_an_accepted_patch(world: World) -> None:
    job = world.advance(world.submit())
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "accepted")
    report = job_report(world.store, job.id)
    assert [found["status"] for found in report["hotspots"]] == ["accepted", "skipped", "skipped"]
    assert all(found["reason"] for found in report["hotspots"])
    assert [(found["author"], found["verdict"]["outcome"]) for found in report["candidates"]] == [
        ("seeds:good", "passed"),
        ("seeds:wrong", "incorrect"),
    ]
    assert report["accepted"][0]["hits"] == 4
    end = report["end_to_end"]
    assert end["decision"] == "accepted"
    assert end["ci95"][0] > 1.9
    assert len(end["baseline_ms"]) == len(end["patched_ms"]) == 6
    assert report["bundle"]["patches"] == 1
    assert list(report["spend"]["seconds"]) == STAGES
    assert report["spend"]["budget_seconds"] == 600
    kinds = [event.kind for event in world.events]
    assert kinds.count("stage_started") == kinds.count("stage_finished") == 7
    assert world.store.events.of(job.id)[-1].text == world.events[-1].text


@pytest.mark.parametrize(("share", "told"), [(0.8, []), (0.4, ["gain_beyond_profile"])])
def test_a_gain_that_the_profile_does_not_allow_is_told(world: World, share: float, told: list[str]) -> None:
    world.host.hotspots = [spot("Slow", share), spot("Other", 0.1)]
    job = world.advance(world.submit())
    report = job_report(world.store, job.id)
    assert report["end_to_end"]["decision"] == "accepted"
    assert [note["code"] for note in report["notes"]] == told


def test_a_job_that_has_ended_is_left_as_it_is(world: World) -> None:
    job = world.advance(world.submit())
    asked = list(world.host.asked)
    assert world.advance(job) == job
    assert world.host.asked == asked


KILLS = [f"stage_started:{stage}:1" for stage in STAGES] + [f"stage_finished:{stage}:1" for stage in ("task", "bundle")]


@pytest.mark.parametrize("kill_at", [*KILLS, "trial:episode:1", "trial:episode:2", "trial:acceptance:1", "note:profile:1"])
def test_a_killed_worker_s_job_goes_on_where_it_was(world: World, tmp_path: Path, kill_at: str) -> None:
    job = world.submit()
    program = [sys.executable, str(Path(__file__).with_name("fake_world.py")), str(tmp_path), job.id]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    killed = subprocess.run([*program, kill_at], capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert killed.returncode == -9, killed.stderr
    assert world.store.jobs.get(job.id).status is JobStatus.RUNNING
    before = {run.stage: run.attempt for run in world.store.stages.runs(job.id) if run.status == "finished"}
    trials = world.store.candidates.trials(job.id, "episode")

    job = world.advance(job)
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "accepted")
    runs = world.store.stages.runs(job.id)
    for stage in StageName:
        attempts = [run for run in runs if run.stage is stage]
        assert [run.status for run in attempts].count("finished") == 1
        if stage in before:
            assert max(run.attempt for run in attempts) == before[stage]
    # a trial that was judged before is not judged again
    assert len([text for text in world.judge.asked if not text.startswith("held out")]) == 2 - len(trials)
    assert statuses(world, job)["h_Slow"][0] == "accepted"


def script(world: World, **end: Any) -> None:
    world.host.capture = captured(end={"kind": "returned", "exit_code": 0, **end})


def test_no_model(world: World) -> None:
    world.host.capture = captured(roots=[], drivers=[])
    job = world.advance(world.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert job.reason is not None
    assert job.reason.text == "nothing to optimise: no model was called"
    assert world.host.asked == ["capture", "environment"]


def test_a_script_that_fails_after_its_model_ran_is_profiled_and_ends_failed(world: World) -> None:
    script(world, kind="raised", exit_code=1, error="ValueError: batch 3")
    job = world.advance(world.submit())
    assert job.status is JobStatus.FAILED
    assert job.reason is not None
    assert job.reason.code == "script_failed"
    assert "exit code 1" in job.reason.text
    assert "ValueError: batch 3" in job.reason.text
    report = job_report(world.store, job.id)
    assert report["job"]["script_exit_code"] == 1
    assert {found["status"] for found in report["hotspots"]} == {"skipped"}
    assert all("ValueError" in found["reason"] for found in report["hotspots"])
    assert "match" not in world.host.asked


def test_a_script_that_leaves_with_an_exit_code(world: World) -> None:
    script(world, kind="exit", exit_code=3)
    world.host.capture = {**captured(roots=[], drivers=[]), "end": {"kind": "exit", "exit_code": 3}}
    job = world.advance(world.submit())
    assert job.reason is not None
    assert (job.status, job.reason.code) == (JobStatus.FAILED, "script_failed")
    assert "exit code 3" in job.reason.text


def test_a_script_that_wants_arguments(world: World) -> None:
    world.host.capture = captured(roots=[], drivers=[], end={"kind": "exit", "exit_code": 2})
    job = world.submit()
    scratch = world.folder / "scratch" / job.id
    scratch.mkdir(parents=True)
    (scratch / "script.stderr").write_text("usage: s.py --text TEXT\ns.py: error: the following arguments are required: --text\n")
    job = world.advance(job)
    assert job.reason is not None
    assert "the script wants arguments: pass them after --" in job.reason.text
    assert "required: --text" in job.reason.text


def test_a_script_that_never_ends_is_profiled_as_far_as_it_came(world: World) -> None:
    world.host.capture = captured(end={"kind": "time_up", "exit_code": None}, partial=True)
    job = world.advance(world.submit())
    assert job.reason is not None
    assert (job.status, job.reason.code) == (JobStatus.FAILED, "time_budget")
    assert job.reason.text.startswith("time budget used up")
    assert len(job_report(world.store, job.id)["hotspots"]) == 3


def test_a_script_that_takes_its_process_with_it(world: World) -> None:
    world.host.capture = Failed("oom", "it held more than 1 GiB", -9)
    world.host.answers["environment"] = Failed("died", "gone")
    job = world.advance(world.submit())
    assert job.reason is not None
    assert (job.status, job.reason.code) == (JobStatus.FAILED, "script_died")
    assert "it held more than 1 GiB" in job.reason.text


def test_training_mode_is_declined_with_a_hint(world: World) -> None:
    world.host.capture = captured(roots=[root(training=True)])
    job = world.advance(world.submit())
    assert job.status is JobStatus.SUCCEEDED
    report = job_report(world.store, job.id)
    assert {found["reason_code"] for found in report["hotspots"]} == {"training_mode"}
    assert all("call eval()" in found["reason"] for found in report["hotspots"])


def test_every_hotspot_without_a_task_says_why(world: World) -> None:
    refusal = {"code": "stateful", "text": "it keeps a counter"}
    world.host.hotspots = [spot("Slow", 0.5), spot("Odd", 0.2, refusal=refusal), spot("Kernel", 0.2), spot("None", 0.05), spot("T", 0.001)]
    world.host.matches = {"h_Slow": ["good"], "h_Kernel": ["kernel"]}
    plan = world.plan()
    file = world.folder / "seeds" / "kernel.py"
    file.write_text("import triton.language as tl\n")
    world.plan = lambda: type(plan)((*plan.seeds, type(plan.seeds[0])("kernel", file)), plan.resolve_target)  # type: ignore[method-assign]
    job = world.advance(world.submit())
    assert statuses(world, job) == {
        "h_Slow": ("accepted", "gain"),
        "h_Odd": ("skipped", "stateful"),
        "h_Kernel": ("skipped", "wrong_device"),
        "h_None": ("skipped", "no_seed"),
        "h_T": ("skipped", "below_minimum_share"),
    }


def test_extraction_that_kills_the_host_is_retried_one_by_one(world: World) -> None:
    world.host.hotspots = [spot("Slow", 0.5), spot("Bad", 0.3)]
    world.host.matches = {"h_Slow": ["good"], "h_Bad": ["good"]}
    extract = world.host._extract

    def deadly(payload: dict[str, Any]) -> Any:
        return Failed("died", "segmentation fault", -11) if "h_Bad" in payload["hotspots"] else extract(payload)

    world.host._extract = deadly  # type: ignore[method-assign]
    job = world.advance(world.submit())
    assert statuses(world, job) == {"h_Slow": ("accepted", "gain"), "h_Bad": ("skipped", "host_died")}


def test_a_profile_that_fails_ends_the_job_with_its_reason(world: World) -> None:
    world.host.answers["profile"] = Failed("oom", "it held more than 1 GiB")
    job = world.advance(world.submit())
    assert job.reason is not None
    assert (job.status, job.reason.code) == (JobStatus.FAILED, "stage_failed")
    assert "1 GiB" in job.reason.text


def test_no_candidate_is_right(world: World) -> None:
    world.host.matches = {"h_Slow": ["wrong"]}
    job = world.advance(world.submit())
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "nothing_accepted")
    assert statuses(world, job)["h_Slow"] == ("rejected", "judge_numerical")


def test_the_best_does_not_hold_on_new_inputs(world: World) -> None:
    world.judge.held_out_verdict = Incorrect(kind="shape", reason="wrong for 3 rows")
    job = world.advance(world.submit())
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "nothing_accepted")
    assert statuses(world, job)["h_Slow"] == ("rejected", "verdict_shape")


def test_a_fresh_process_disagrees(world: World) -> None:
    world.fresh = "drop"
    job = world.advance(world.submit())
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "nothing_accepted")
    report = job_report(world.store, job.id)
    assert report["accepted"] == []
    assert report["bundle"] is None
    assert report["hotspots"][0]["status"] == "rejected"
    assert report["end_to_end"]["decision"] == "nothing_accepted"


def test_the_budget_ends_a_job_in_good_order(world: World) -> None:
    world.host.seconds = {"profile": 500.0}
    job = world.advance(world.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert statuses(world, job)["h_Slow"] == ("skipped", "budget_spent")


def test_acceptance_keeps_its_part_of_the_budget(world: World) -> None:
    world.judge.seconds = 200.0
    job = world.advance(world.submit())
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "accepted")
    seconds = job_report(world.store, job.id)["spend"]["seconds"]
    before = sum(seconds[name] for name in STAGES[: STAGES.index("acceptance")])
    assert before <= 0.75 * 600


def test_a_job_that_stops_after_a_stage(world: World) -> None:
    job = world.advance(world.submit(stop_after=StageName.TASK))
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "stopped_as_asked")
    assert [task.hotspot for task in world.store.candidates.tasks(job.id)] == ["h_Slow", "h_Other"]
    assert world.judge.asked == []


def test_cancelling_takes_effect_between_steps(world: World) -> None:
    job = world.submit()

    def hear(event: Event) -> None:
        if event.kind == "trial" and event.stage is StageName.EPISODE:
            cancel(job.id, world.store, world.clock)

    ended = world.advance(job, hear)
    assert ended.status is JobStatus.CANCELLED
    assert len(world.judge.asked) == 1
    assert not cancel(job.id, world.store, world.clock)


def test_a_signal_leaves_the_job_to_be_continued(world: World) -> None:
    job = world.submit()

    def hear(event: Event) -> None:
        if event.kind == "stage_started" and event.stage is StageName.EPISODE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.advance(job, hear)
    assert world.store.jobs.get(job.id).status is JobStatus.QUEUED
    assert statuses(world, job)["h_Slow"] == ("skipped", "interrupted")
    assert world.advance(job).status is JobStatus.SUCCEEDED


def test_the_machine_s_fault_leaves_the_job_to_be_continued(world: World) -> None:
    job = world.submit()

    def hear(event: Event) -> None:
        if event.kind == "stage_started" and event.stage is StageName.PROFILE:
            raise StoreUnavailable("the disk went away")

    with pytest.raises(StoreUnavailable):
        world.advance(job, hear)
    assert world.store.jobs.get(job.id).status is JobStatus.QUEUED
    assert world.store.stages.runs(job.id)[-1].reason.code == "interrupted"  # type: ignore[union-attr]


def test_a_fault_of_ours_is_stored_and_passed_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TypeError("odd")

    monkeypatch.setattr("llm4llm.stages.task.run.phases", broken)
    job = world.submit()
    with pytest.raises(TypeError):
        world.advance(job)
    ended = world.store.jobs.get(job.id)
    assert (ended.status, ended.reason and ended.reason.code) == (JobStatus.FAILED, "internal_error")


def test_the_device_is_held_while_a_stage_measures_and_costs_no_budget(world: World) -> None:
    stages: list[str] = []
    held = False

    @contextmanager
    def device() -> Iterator[None]:
        nonlocal held
        world.clock.sleep(1000.0)  # somebody else was there
        held = True
        yield
        held = False

    def hear(event: Event) -> None:
        if event.kind == "stage_started" and event.stage is not None and held:
            stages.append(event.stage.value)

    world.device = device
    job = world.advance(world.submit(), hear)
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "accepted")
    assert stages == ["profile", "episode", "verdict", "acceptance"]
    assert sum(job_report(world.store, job.id)["spend"]["seconds"].values()) < 600


def test_a_job_cancelled_while_it_waits_for_the_device_measures_nothing(world: World) -> None:
    job = world.submit()

    @contextmanager
    def device() -> Iterator[None]:
        cancel(job.id, world.store, world.clock)
        yield

    world.device = device
    assert world.advance(job).status is JobStatus.CANCELLED
    assert "profile" not in world.host.asked


def test_the_machine_s_fault_is_not_tried_again_at_once(world: World) -> None:
    job = world.submit()
    world.host.answers["profile"] = Failed("died", "gone")

    def hear(event: Event) -> None:
        raise StoreUnavailable("the disk went away")

    with pytest.raises(StoreUnavailable):
        world.advance(job, hear)
    now = iso(world.clock.now())
    assert world.store.leases.waiting(now) == 0
    world.clock.sleep(6)
    assert world.store.leases.waiting(iso(world.clock.now())) == 1


def test_a_job_that_was_taken_away_is_left_as_it_is(world: World) -> None:
    job = world.submit()
    hold = Hold("a", iso(world.clock.now()), iso(world.clock.now()))
    assert world.store.leases.claim(hold, 3)
    store, world.store = world.store, world.store.fenced(Fence(job.id, "a"))

    def hear(event: Event) -> None:
        if event.kind == "stage_started" and event.stage is StageName.TASK:
            assert store.leases.take(job.id, hold._replace(holder="b"), lambda holder: True)

    with pytest.raises(LeaseLost):
        world.advance(job, hear)
    assert store.jobs.get(job.id).status is JobStatus.RUNNING
    assert store.stages.runs(job.id)[-1].status == "running"
    assert store.leases.held() == {job.id: "b"}


def test_stages_work_on_the_request_as_this_machine_can_run_it(world: World) -> None:
    job = world.submit()
    world.request = job.request.model_copy(update={"min_gain": 3.0})
    ended = world.advance(job)
    assert ended.reason is not None
    assert ended.reason.code == "nothing_accepted"
    assert world.store.jobs.get(job.id).request.min_gain == job.request.min_gain


def test_other_steps_may_be_walked(world: World) -> None:
    capture, *_ = STEPS
    job = world.submit(stop_after=StageName.CAPTURE)
    seen: list[str] = []

    def run(bench: Bench) -> Frozen:
        seen.append(bench.job.id)
        return capture.run(bench)

    world.steps = (replace(capture, run=run),)
    assert world.advance(job).status is JobStatus.SUCCEEDED
    assert seen == [job.id]


def test_a_host_that_answers_nonsense_ends_no_job_as_our_fault(world: World) -> None:
    world.host.matches = {"h_Slow": 3, "": [{}]}  # type: ignore[dict-item]
    job = world.advance(world.submit())
    assert (job.status, job.reason and job.reason.code) == (JobStatus.SUCCEEDED, "nothing_to_try")


def test_a_job_keeps_so_many_notes_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm4llm.pipeline.advance.MOST_EVENTS", 6)
    job = world.submit()
    for number in range(3):
        world.store.events.add(Event(job=job.id, kind="note", text=str(number)), iso(world.clock.now()))
    assert world.advance(job).status is JobStatus.SUCCEEDED
    notes = [event.text for event in world.store.events.of(job.id) if event.kind == "note"]
    assert notes[-1] == MORE
    assert len(notes) <= 6
    assert [event.text for event in world.events if event.kind == "note"] == notes[3:]
