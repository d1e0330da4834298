import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from llm4llm.kit import FrozenClock
from llm4llm.schema.acceptance import Acceptance, Check, Patch, Site, Trialled
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, JobStatus, Request
from llm4llm.schema.measurement import Paired
from llm4llm.schema.reason import Reason
from llm4llm.stages.acceptance.decide import decided
from llm4llm.stages.acceptance.run import CONFIRMATION_SHARE, Proposal, run
from llm4llm.stages.tools import Failed, Ok, OnEvent, Tools


def patch(name: str) -> Patch:
    return Patch(
        candidate=name, candidate_sha256=name * 8, task="t", root="r0", module_class="Block", phase="decode", family="f", paths=("b.0",),
        config={}, proven_domain={},
    )  # fmt: skip


def proposal(name: str, share: float = 0.3, speedup: float | None = 2.0) -> Proposal:
    return Proposal(patch(name), share, speedup)


@dataclass
class LiveHost:
    """Answers trials from a table of gains; a set's time is the product of its members' factors, changed by `together`."""

    gains: dict[str, float]
    clock: FrozenClock
    noise: float = 0.002
    together: Callable[[frozenset[str]], float] = lambda _: 1.0
    wrong: Callable[[frozenset[str]], bool] = lambda _: False
    idle: frozenset[str] = frozenset()
    broken: dict[str, Failed] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 10.0

    def _time(self, names: frozenset[str]) -> float:
        factor = self.together(names)
        for name in names:
            factor *= self.gains[name]
        return 100.0 / factor

    def request(self, op: str, payload: dict[str, Any], timeout_s: float, on_event: OnEvent | None = None) -> Ok | Failed:
        assert op == "trial"
        assert timeout_s > payload["time_limit_s"]
        self.asked.append(payload)
        self.clock.sleep(self.seconds)
        new, base = ([item["candidate"] for item in payload[key]] for key in ("patches", "base"))
        assert all(Path(item["file"]).is_file() for item in (*payload["patches"], *payload["base"]))
        failed = next((self.broken[name] for name in new if name in self.broken), None)
        if failed is not None:
            return failed
        everything = frozenset((*new, *base))
        passed = not self.wrong(everything)
        rng = random.Random(str(sorted(everything)))
        pairs = 10 if passed and not self.idle & set(new) else 0
        before, after = self._time(frozenset(base)), self._time(everything)
        return Ok(
            {
                "checks": [{"name": "logits", "passed": passed, "detail": "error 0.5" if not passed else "fine"}],
                "sites": {name: [{"path": "b.0", "hits": 0 if name in self.idle else 4, "fallbacks": 1}] for name in everything},
                "baseline_ms": [before * (1 + self.noise * rng.uniform(-1, 1)) for _ in range(pairs)],
                "patched_ms": [after * (1 + self.noise * rng.uniform(-1, 1)) for _ in range(pairs)],
                "restored": True,
                "method": "by table",
            }
        )


@dataclass
class Fresh:
    """A fresh process that agrees, unless the set holds something that it does not like."""

    bad: Callable[[frozenset[str]], str | None] = lambda _: None
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, patches: tuple[Patch, ...], time_limit_s: float, excuse: str | None = None) -> Trialled:
        assert time_limit_s > 0
        names = tuple(one.candidate for one in patches)
        self.asked.append(names)
        problem = self.bad(frozenset(names))
        check = Check(name="stdout", passed=problem != "stdout", detail="")
        timing = Paired(baseline_ms=(2.0,) * 3, patched_ms=(1.0,) * 3, method="runs", ci95=(2.0, 2.0), speedup=2.0)
        return Trialled(
            patches=names,
            checks=(check,),
            sites={name: (Site(path="b.0", hits=1, fallbacks=0),) for name in names},
            timing=timing,
            decision="drop" if problem else "keep",
            reason=Reason(code=problem or "gain", text=problem or "2x"),
        )


@dataclass
class Blobs:
    folder: Path

    def put(self, content: bytes) -> str:
        raise NotImplementedError

    def path(self, sha256: str) -> Path:
        file = self.folder / sha256
        file.write_text("def forward(module, state, x): ...")
        return file


@dataclass
class Scene:
    host: LiveHost
    fresh: Fresh
    events: list[Event]
    decide: Callable[..., Acceptance]


@pytest.fixture
def scene(tmp_path: Path) -> Callable[..., Scene]:
    def made(gains: dict[str, float], fresh: Fresh | None = None, **host: Any) -> Scene:
        clock = FrozenClock()
        live, process, events = LiveHost(gains, clock, **host), fresh or Fresh(), []

        def decide(*proposals: Proposal, seconds: float = 1000.0, min_gain: float = 1.02, cancelled: bool = False) -> Acceptance:
            request = Request(script="/s.py", script_sha256="0" * 64, working_directory="/", python="/usr/bin/python3", min_gain=min_gain)
            job = Job(id="job_1", request=request, status=JobStatus.RUNNING, created_at="2025-01-01T00:00:00+00:00")
            tools = Tools(
                host=live, judge=cast(Any, None), confirm=process, clock=clock, progress=events.append, blobs=Blobs(tmp_path),
                scratch=tmp_path, deadline=clock.monotonic() + seconds, cancelled=lambda: cancelled,
            )  # fmt: skip
            return run(job, proposals, tools)

        return Scene(live, process, events, decide)

    return made


def fate(found: Acceptance, name: str) -> tuple[str, str]:
    last = [trial for trial in found.trials if trial.patches == (name,)][-1]
    return last.decision, last.reason.code


def kept(found: Acceptance) -> tuple[str, ...]:
    return tuple(one.candidate for one in found.kept)


def test_one_good_patch_is_accepted_and_confirmed(scene: Any) -> None:
    stage = scene({"a": 1.3})
    found = stage.decide(proposal("a"))
    assert found.decision == "accepted"
    assert kept(found) == ("a",)
    assert found.together is not None
    assert found.together.timing is found.trials[0].timing  # alone it is the whole set: measured once
    assert found.together.timing.ci95[0] > 1.02
    assert found.together.timing.method == "by table"
    assert stage.fresh.asked == [("a",)]
    assert found.fresh_process is not None
    assert stage.events[-1].kind == "decision"


def test_two_gains_of_1_3_both_count(scene: Any) -> None:
    stage = scene({"a": 1.3, "b": 1.3})
    found = stage.decide(proposal("a"), proposal("b"))
    assert kept(found) == ("a", "b")
    assert [item["candidate"] for item in stage.host.asked[1]["base"]] == ["a"]
    assert stage.host.asked[2]["base"] == []
    assert found.together.timing.speedup == pytest.approx(1.69, rel=0.01)


def test_small_gains_add_up_to_the_threshold(scene: Any) -> None:
    found = scene({"a": 1.013, "b": 1.013, "c": 1.013}).decide(proposal("a"), proposal("b"), proposal("c"))
    assert kept(found) == ("a", "b", "c")
    found = scene({"a": 1.008}).decide(proposal("a"))
    assert found.decision == "nothing_accepted"
    assert fate(found, "a") == ("drop", "gain_too_small")


def test_the_most_promising_patch_is_tried_first(scene: Any) -> None:
    stage = scene({"a": 1.3, "b": 1.3, "c": 1.3})
    stage.decide(proposal("a", 0.1, 10.0), proposal("b", 0.5, 1.1), proposal("c", 0.6, 2.0))
    assert [asked["patches"][0]["candidate"] for asked in stage.host.asked[:3]] == ["c", "a", "b"]
    unknown = scene({"a": 1.3, "b": 1.3})
    unknown.decide(proposal("a", 0.9, None), proposal("b", 0.1, 1.1))
    assert unknown.host.asked[0]["patches"][0]["candidate"] == "b"


def test_why_patches_are_dropped(scene: Any) -> None:
    stage = scene(
        {"good": 1.3, "slow": 0.8, "idle": 1.0, "wrong": 1.5, "dead": 1.0, "same": 1.001},
        idle=frozenset({"idle"}),
        wrong=lambda names: "wrong" in names,
        broken={"dead": Failed("died", "signal 11")},
    )
    found = stage.decide(*(proposal(name) for name in stage.host.gains))
    assert kept(found) == ("good",)
    assert fate(found, "slow") == ("drop", "slower")
    assert fate(found, "idle") == ("drop", "never_ran")
    assert fate(found, "wrong") == ("drop", "check_logits")
    assert fate(found, "dead") == ("drop", "trial_died")
    assert fate(found, "same") in [("drop", "no_decision"), ("drop", "gain_too_small")]


def test_an_interval_that_straddles_is_no_decision(scene: Any) -> None:
    found = scene({"a": 1.01}, noise=0.2).decide(proposal("a"))
    assert fate(found, "a") == ("drop", "no_decision")
    assert found.reason.code == "no_decision"


def test_a_set_that_is_wrong_together_loses_its_weakest(scene: Any) -> None:
    stage = scene({"a": 1.5, "b": 1.2, "c": 1.3})
    stage.host.wrong = lambda names: names == {"a", "b", "c"} and len(stage.host.asked) > 3
    found = stage.decide(proposal("a"), proposal("b"), proposal("c"))
    assert set(kept(found)) == {"a", "c"}
    assert fate(found, "b") == ("drop", "dropped_from_set")


def test_a_set_that_gains_less_than_its_first_alone_shrinks(scene: Any) -> None:
    stage = scene({"a": 1.5, "b": 1.2})
    stage.host.together = lambda names: 0.7 if len(names) == 2 and len(stage.host.asked) > 2 else 1.0
    found = stage.decide(proposal("a"), proposal("b"))
    assert kept(found) == ("a",)
    assert any(trial.reason.code == "worse_than_subset" for trial in found.trials)


def test_a_fresh_process_that_prints_something_else_costs_the_weakest(scene: Any) -> None:
    fresh = Fresh(bad=lambda names: "stdout" if "b" in names else None)
    found = scene({"a": 1.5, "b": 1.2}, fresh).decide(proposal("a"), proposal("b"))
    assert kept(found) == ("a",)
    assert found.fresh_process.decision == "keep"
    assert fate(found, "b") == ("drop", "dropped_from_set")


def test_no_gain_in_a_fresh_process_accepts_nothing(scene: Any) -> None:
    found = scene({"a": 1.5}, Fresh(bad=lambda _: "no_decision")).decide(proposal("a"))
    assert found.decision == "nothing_accepted"
    assert found.kept == ()
    assert found.reason.code == "no_decision"
    assert fate(found, "a") == ("drop", "no_decision")


def test_nothing_to_try(scene: Any) -> None:
    found = scene({}).decide()
    assert (found.decision, found.reason.code, found.trials) == ("nothing_accepted", "no_candidates", ())


def test_a_high_threshold_accepts_nothing_and_says_so(scene: Any) -> None:
    found = scene({"a": 1.3}).decide(proposal("a"), min_gain=2.0)
    assert found.decision == "nothing_accepted"
    assert fate(found, "a")[0] == "drop"
    assert "2.000" in found.reason.text


def test_budget_is_shared_and_its_end_is_a_reason(scene: Any) -> None:
    stage = scene(dict.fromkeys("abcdef", 1.1))
    found = stage.decide(*(proposal(name) for name in "abcdef"), seconds=60.0)
    limits = [asked["time_limit_s"] for asked in stage.host.asked]
    assert limits[0] == pytest.approx((1 - CONFIRMATION_SHARE) * 60.0 / 7)
    assert [fate(found, name)[1] for name in "abcdef"] == ["gain"] * 3 + ["budget_spent"] * 3
    assert kept(found) == ("a", "b", "c")  # time was left for the whole set and its confirmation
    assert all(limit >= 3.0 for limit in limits)


def test_most_time_goes_to_the_most_promising_patch(scene: Any) -> None:
    stage = scene({"a": 1.2, "b": 1.0, "c": 1.0})
    stage.decide(proposal("a", 0.5, 1.7), proposal("b", 0.2, 2.0), proposal("c", 0.02, 1.2), seconds=100.0)
    limits = [asked["time_limit_s"] for asked in stage.host.asked]
    first, second, third = 0.5 * (1 - 1 / 1.7), 0.1, 0.2 * 0.5 * (1 - 1 / 1.7)
    assert limits[0] == pytest.approx((1 - CONFIRMATION_SHARE) * 100.0 * first / (2 * first + second + third))


def test_cancelled(scene: Any) -> None:
    stage = scene({"a": 1.3})
    found = stage.decide(proposal("a"), cancelled=True)
    assert found.reason.code == "cancelled"
    assert stage.host.asked == []


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"checks": None, "sites": {}},
        {"checks": [{"name": "runs", "passed": True, "detail": ""}] * 10_000, "sites": {}},
        {"checks": [], "sites": {"x": 3}},
        {"checks": [], "sites": {}, "baseline_ms": ["fast"], "patched_ms": [1.0]},
        {"checks": [], "sites": {}, "baseline_ms": [1.0] * 10_000, "patched_ms": [1.0] * 10_000},
    ],
)
def test_a_trial_that_can_not_be_read_is_dropped(result: dict[str, Any]) -> None:
    found = decided((), Ok(result), 1.0)
    assert (found.decision, found.reason.code) == ("drop", "trial_unreadable")


def test_sites_beyond_what_anybody_reads_are_added_up() -> None:
    sites = [
        {"path": f"layers.{number}.experts.down_proj", "hits": 2, "fallbacks": 1, "fallback_reasons": {"shape": 1}}
        for number in range(50_000)
    ]
    answer = Ok({"checks": [], "sites": {"a": sites, "b": sites[:2], "odd": sites}, "restored": True})
    found = decided((patch("b"), patch("a")), answer, 1.0).sites
    assert set(found) == {"a", "b"}
    assert [site.path for site in found["b"]] == ["layers.0.experts.down_proj", "layers.1.experts.down_proj"]
    assert sum(site.hits for site in found["a"]) == 100_000
    assert sum(site.fallbacks for site in found["a"]) == 50_000
    assert 1_000 < len(found["a"]) < 5_000
    assert found["a"][-1].path == f"and {50_001 - len(found['a'])} more"
