"""Which patches make the user's own workload faster, decided on the live instance.

Patches overlap: a decoder layer holds its norms, and prefill and decode patches share a site. So each patch is tried *on top of* those
already kept: both arms of its trial carry the kept ones and only the second carries the new one. A patch is kept if the low end of that
incremental interval is above STEP (a hair over 1, so that small true gains add up and noise does not). What the request's `min_gain`
demands is asked of the whole set: all kept patches together against the unpatched model, then once more in fresh processes. While the whole
set fails, its weakest member is dropped. The last trial that names a patch alone says what became of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm4llm.kit import counted
from llm4llm.schema.acceptance import Acceptance, Patch, Trialled
from llm4llm.schema.event import Event
from llm4llm.schema.job import Job, StageName
from llm4llm.schema.reason import Reason
from llm4llm.stages.acceptance.decide import decided, dropped, gain, idle
from llm4llm.stages.promise import STEP, promise
from llm4llm.stages.tools import Tools

PAIRS = 30  # enough for an interval of ±1 % where single pairs scatter by 4 %
MIN_PAIRS = 5
CLEAR = 1.03  # pairs that all lie this far above the threshold need no further ones
MIN_TRIAL_S = 3.0
MAX_TRIAL_S = 180.0
LEAST_PART = 0.2  # of the most promising patch's time, for each other one
CONFIRMATION_SHARE = 0.35  # of the stage's time; two runs of the script per pair


@dataclass(frozen=True)
class Proposal:
    """A judged patch with what it promises: its hotspot's share of the workload and its speedup alone (None: could not be measured)."""

    patch: Patch
    share: float
    speedup: float | None

    @property
    def promise(self) -> float:
        return promise(self.share, self.speedup)


@dataclass(frozen=True)
class _Kept:
    patch: Patch
    trial: Trialled

    @property
    def strength(self) -> float:
        return self.trial.timing.ci95[0] if self.trial.timing and self.trial.timing.ci95 else 0.0


class _Course:
    """The trials of one job, in order."""

    def __init__(self, job: Job, tools: Tools) -> None:
        self.job = job
        self.tools = tools
        self.trials: list[Trialled] = []
        self._until = tools.deadline - CONFIRMATION_SHARE * tools.seconds_left()
        self._least = 0.0  # seconds that the dearest trial needed at least: references, preparation and the fewest pairs

    def room_for_more(self) -> bool:
        """True if another trial leaves time for the trial of the whole set."""
        return self._until - self.tools.clock.monotonic() >= 2.0 * self._least

    def trial_seconds(self, part: float = 1.0) -> float:
        """A part of the time before the confirmation; 0 if that is too little for a trial."""
        left = self._until - self.tools.clock.monotonic()
        each = min(MAX_TRIAL_S, left * part)
        return each if each >= MIN_TRIAL_S else (MIN_TRIAL_S if left >= MIN_TRIAL_S else 0.0)

    def stopped(self, seconds: float) -> tuple[str, str] | None:
        if self.tools.cancelled():
            return "cancelled", "the job was cancelled before this could be tried"
        if seconds <= 0:
            return "budget_spent", "no time was left to try this on the live model; give the job a larger --budget"
        return None

    def last_seconds(self) -> float:
        """For the trial that nothing may be kept without: it may take from the confirmation's time."""
        left = self.tools.seconds_left()
        return max(self.trial_seconds(), MIN_TRIAL_S if left >= MIN_TRIAL_S else 0.0)

    def measure(self, patches: tuple[Patch, ...], base: tuple[Patch, ...], threshold: float, seconds: float) -> Trialled:
        """One trial on the live instance; its record is kept whatever it says. `seconds` of 0: no time is left for it."""
        stop = self.stopped(seconds)
        started = self.tools.clock.monotonic()
        if stop is not None:
            trial = dropped(patches, *stop)
        else:
            payload = {
                "patches": [self._placed(patch) for patch in patches],
                "base": [self._placed(patch) for patch in base],
                "pairs": PAIRS,
                "min_pairs": MIN_PAIRS,
                "clear_above": CLEAR * threshold,
                "time_limit_s": seconds,
            }
            # loading, preparing and first-call compilation come on top of the measured time
            answer = self.tools.host.request("trial", payload, timeout_s=3.0 * seconds + 300.0)
            trial = decided(patches, answer, threshold)
            self._least = max(self._least, _least_seconds(trial, self.tools.clock.monotonic() - started))
        self.trials.append(trial)
        self.tell(trial)
        return trial

    def tell(self, trial: Trialled, fresh: bool = False) -> None:
        speedup = trial.timing.speedup if trial.timing else None
        facts: dict[str, Any] = {
            "patches": list(trial.patches),
            "decision": trial.decision,
            "reason": trial.reason.code,
            "speedup": speedup,
            "fresh_process": fresh,
        }
        where = " in a fresh process" if fresh else ""
        text = f"{', '.join(trial.patches)}: {trial.decision}{where} ({trial.reason.text})"
        self.tools.progress(Event(job=self.job.id, kind="trial", stage=StageName.ACCEPTANCE, text=text, facts=facts))

    def _placed(self, patch: Patch) -> dict[str, Any]:
        return {**patch.model_dump(mode="json"), "file": str(self.tools.candidate_file(patch.candidate_sha256))}


def _least_seconds(trial: Trialled, seconds: float) -> float:
    """What a trial that took `seconds` would have needed with the fewest pairs."""
    if trial.timing is None:
        return seconds
    pairs = len(trial.timing.baseline_ms)
    measured = min(seconds, (sum(trial.timing.baseline_ms) + sum(trial.timing.patched_ms)) / 1e3)
    return seconds - measured * (1.0 - min(MIN_PAIRS, pairs) / pairs)


def run(job: Job, proposals: Sequence[Proposal], tools: Tools) -> Acceptance:
    """Every trial, the set that was kept and its confirmation in fresh processes."""
    course = _Course(job, tools)
    if not proposals:
        return _ended(
            course, None, None, Reason(code="no_candidates", text="no candidate passed the judge, so there was nothing to put in place")
        )
    kept = _one_by_one(course, proposals)
    if not kept:
        return _ended(course, None, None, _main_reason(course.trials))
    return _together(course, kept)


def _one_by_one(course: _Course, proposals: Sequence[Proposal]) -> list[_Kept]:
    """Patches that were kept, each on top of those before it; the most promising first."""
    ranked = sorted(proposals, key=lambda proposal: (-proposal.promise, -proposal.share, proposal.patch.candidate))
    threshold = min(STEP, course.job.request.min_gain)
    most = max(proposal.promise for proposal in ranked)
    weights = [max(proposal.promise, LEAST_PART * most) or 1.0 for proposal in ranked]
    kept: list[_Kept] = []
    for position, proposal in enumerate(ranked):
        base = tuple(item.patch for item in kept)
        # time goes where the gain is expected; the last trial of all puts the whole set in place
        part = weights[position] / (sum(weights[position:]) + weights[0])
        seconds = course.trial_seconds(part) if course.room_for_more() or not kept else 0.0
        trial = course.measure((proposal.patch,), base, threshold, seconds)
        if trial.decision == "keep":
            kept.append(_Kept(proposal.patch, trial))
    return kept


def _together(course: _Course, kept: list[_Kept]) -> Acceptance:
    """The whole set against the unpatched model, then in fresh processes; the weakest member goes while the set fails."""
    together: Trialled | None = None
    fresh: Trialled | None = None
    while kept:
        together = _whole_set(course, kept)
        if together.decision == "keep":
            fresh = _confirmed(course, tuple(item.patch for item in kept), _excuse(together))
            if fresh.decision == "keep":
                return _accepted(course, kept, together, fresh)
            if all(check.passed for check in fresh.checks):
                break  # it computes the right thing without the gain, and a smaller set gains no more
            why = f"the set with it failed in a fresh process: {fresh.reason.text}"
        else:
            why = f"the set with it was not kept: {together.reason.text}"
        if together.reason.code in ("cancelled", "budget_spent"):
            break
        kept = _without_weakest(course, kept, together, why)
    last = fresh if fresh is not None and fresh.decision == "drop" else together
    reason = last.reason if last is not None else _main_reason(course.trials)
    course.trials += [dropped((item.patch,), reason.code, f"the set with it was not accepted: {reason.text}") for item in kept]
    return _ended(course, together, fresh, reason)


def _whole_set(course: _Course, kept: list[_Kept]) -> Trialled:
    patches, threshold = tuple(item.patch for item in kept), course.job.request.min_gain
    alone = kept[0].trial.timing  # the first kept patch was measured against the unpatched model
    if len(kept) == 1 and alone is not None and alone.ci95 is not None and alone.ci95[0] > threshold and _had_no_base(course, kept[0]):
        return kept[0].trial.model_copy(update={"reason": gain(alone, threshold)})
    trial = course.measure(patches, (), threshold, course.last_seconds())
    if trial.decision == "keep" and len(kept) > 1 and _had_no_base(course, kept[0]) and alone and alone.ci95 and trial.timing:
        best, whole = alone.ci95[0], trial.timing.ci95
        if whole is not None and whole[1] < best:
            text = f"all together gain less ({trial.timing.speedup:.3f}x) than {kept[0].patch.candidate} alone ({alone.speedup:.3f}x)"
            trial = trial.model_copy(update={"decision": "drop", "reason": Reason(code="worse_than_subset", text=text)})
            course.trials[-1] = trial
    return trial


def _had_no_base(course: _Course, first: _Kept) -> bool:
    """True if this patch was the first that was kept at all: its own trial had the unpatched model as baseline."""
    earliest = next((trial for trial in course.trials if trial.decision == "keep" and len(trial.patches) == 1), None)
    return earliest is first.trial


def _without_weakest(course: _Course, kept: list[_Kept], together: Trialled, why: str) -> list[_Kept]:
    never = {patch.candidate for patch in idle(tuple(item.patch for item in kept), together.sites)} if together.sites else set()
    weakest = min(kept, key=lambda item: (item.patch.candidate not in never, item.strength))
    if together.patches != (weakest.patch.candidate,) or together.decision == "keep":
        course.trials.append(dropped((weakest.patch,), "dropped_from_set", why))
    return [item for item in kept if item is not weakest]


def _excuse(trial: Trialled) -> str | None:
    """Which differing token the live model's own rounding explains; None if all agreed."""
    return next((check.detail for check in trial.checks if check.excused and check.passed), None)


def _confirmed(course: _Course, patches: tuple[Patch, ...], excuse: str | None) -> Trialled:
    seconds = course.tools.seconds_left()
    stop = course.stopped(seconds)
    fresh = dropped(patches, *stop) if stop is not None else course.tools.confirm(patches, seconds, excuse)
    course.tell(fresh, fresh=True)
    return fresh


def _accepted(course: _Course, kept: list[_Kept], together: Trialled, fresh: Trialled) -> Acceptance:
    patches = tuple(item.patch for item in kept)
    excuse = _excuse(together)
    text = f"{counted(len(patches), 'patch', 'patches')}: {together.reason.text}; confirmed in a fresh process"
    text += f"; generated text may differ within rounding ({excuse})" if excuse else ""
    reason = Reason(code="accepted", text=text)
    course.tools.progress(Event(job=course.job.id, kind="decision", stage=StageName.ACCEPTANCE, text=text))
    return Acceptance(trials=tuple(course.trials), kept=patches, together=together, fresh_process=fresh, decision="accepted", reason=reason)


def _ended(course: _Course, together: Trialled | None, fresh: Trialled | None, reason: Reason) -> Acceptance:
    event = Event(job=course.job.id, kind="decision", stage=StageName.ACCEPTANCE, text=f"nothing accepted: {reason.text}")
    course.tools.progress(event)
    return Acceptance(
        trials=tuple(course.trials), kept=(), together=together, fresh_process=fresh, decision="nothing_accepted", reason=reason
    )


def _main_reason(trials: list[Trialled]) -> Reason:
    """Why nothing was kept: the reason of the trial that came closest, by the interval's low end."""
    closest = max(trials, key=lambda trial: trial.timing.ci95[0] if trial.timing and trial.timing.ci95 else 0.0)
    return Reason(code=closest.reason.code, text=f"no patch was kept; the closest one: {closest.reason.text}")
