"""The report of a job as plain data: what was asked, found, tried, kept and spent."""

from pathlib import Path
from typing import Any

from llm4llm.schema.acceptance import Acceptance, Trialled
from llm4llm.schema.candidate import Candidate
from llm4llm.schema.episode import Trial
from llm4llm.schema.job import Job
from llm4llm.schema.reason import Reason
from llm4llm.schema.results import Results
from llm4llm.service.outcome import outcome
from llm4llm.store import Store


def job_report(store: Store, job_id: str) -> dict[str, Any]:
    """JSON-ready facts of a job in any state; UnknownJob if there is none.

    Keys are stable; values that are not known yet are null or empty.
    """
    job = store.jobs.get(job_id)
    results = store.stages.results(job_id)
    tried = store.candidates.trials(job_id, "episode")
    acceptance = results.acceptance
    return {
        "job": _job(job, results),
        "environment": results.capture.environment.model_dump(mode="json") if results.capture else None,
        "script": results.capture.end.model_dump(mode="json") if results.capture else None,
        "notes": [note.model_dump(mode="json") for note in (*(results.capture.notes if results.capture else ()), *contradictions(results))],
        "drivers": [driver.model_dump(mode="json") for driver in results.capture.drivers] if results.capture else [],
        "hotspots": _hotspots(job, results, tried),
        "profile_method": results.profile.method if results.profile else "",
        "candidates": [_candidate(trial, store.candidates.trials(job_id, "verdict")) for trial in tried],
        "accepted": _accepted(acceptance, tuple(trial.candidate for trial in tried)),
        "end_to_end": _end_to_end(results),
        "bundle": results.bundle.bundle.model_dump(mode="json") if results.bundle and results.bundle.bundle else None,
        "spend": _spend(job, store),
    }


def contradictions(results: Results) -> tuple[Reason, ...]:
    """Where two measurements of one job can't both hold; said, so that nobody has to find it."""
    if results.acceptance is None or results.profile is None or results.acceptance.together is None:
        return ()
    timing, kept = results.acceptance.together.timing, {(patch.root, patch.phase, patch.paths) for patch in results.acceptance.kept}
    share = sum(spot.share for spot in results.profile.hotspots if (spot.root, spot.phase, spot.paths) in kept)
    if not kept or timing is None or timing.ci95 is None or share >= 1.0 or timing.ci95[0] <= 1.0 / (1.0 - share):
        return ()
    text = (
        f"the gain in place (at least {timing.ci95[0]:.2f}x) is more than {share:.0%} of the profiled time could bring"
        f" ({1.0 / (1.0 - share):.2f}x): the machine worked at another pace meanwhile; go by the paired measurement"
    )
    return (Reason(code="gain_beyond_profile", text=text),)


def _job(job: Job, results: Results) -> dict[str, Any]:
    # variables are the user's own and may hold secrets: a report is handed on, so it names them only
    request = job.request.model_dump(mode="json", exclude={"environment"})
    return {
        "id": job.id,
        "status": job.status.value,
        "stage": job.stage.value if job.stage else None,
        "reason": job.reason.model_dump(mode="json") if job.reason else None,
        "created_at": job.created_at,
        "ended_at": job.ended_at,
        "script_name": Path(job.request.script).name,
        "script_exit_code": results.capture.end.exit_code if results.capture else None,
        "request": {**request, "environment": sorted(job.request.environment)},
    }


def _hotspots(job: Job, results: Results, tried: tuple[Trial, ...]) -> list[dict[str, Any]]:
    rows = []
    for spot in results.profile.hotspots if results.profile else ():
        status, reason = outcome(spot, job, results, tried)
        facts = spot.model_dump(mode="json", exclude={"refusal", "paths"})
        rows.append({**facts, "instances": len(spot.paths), "status": status, "reason": reason.text, "reason_code": reason.code})
    return rows


def _candidate(trial: Trial, finals: tuple[Trial, ...]) -> dict[str, Any]:
    candidate = trial.candidate
    final = next((other.verdict for other in finals if other.candidate.id == candidate.id), None)
    return {
        "id": candidate.id,
        "task": candidate.task,
        "author": candidate.author,
        "hypothesis": candidate.hypothesis,
        "sha256": candidate.sha256,
        "verdict": trial.verdict.model_dump(mode="json"),
        "final_verdict": final.model_dump(mode="json") if final else None,
    }


def _accepted(acceptance: Acceptance | None, candidates: tuple[Candidate, ...]) -> list[dict[str, Any]]:
    if acceptance is None:
        return []
    authors = {candidate.id: candidate.author for candidate in candidates}
    together = acceptance.together.sites if acceptance.together else {}
    rows = []
    for patch in acceptance.kept:
        sites = together.get(patch.candidate, ())
        rows.append(
            {
                "candidate": patch.candidate,
                "author": authors.get(patch.candidate, patch.candidate),
                "module_class": patch.module_class,
                "phase": patch.phase,
                "paths": list(patch.paths),
                "sites": len(patch.paths),
                "hits": sum(site.hits for site in sites),
                "fallbacks": sum(site.fallbacks for site in sites),
            }
        )
    return rows


def _end_to_end(results: Results) -> dict[str, Any]:
    """The whole workload without and with all kept patches; without a comparison, the unpatched passes of the profile."""
    acceptance = results.acceptance
    if acceptance is None or acceptance.together is None or acceptance.together.timing is None:
        samples = results.profile.end_to_end.samples_ms if results.profile else ()
        numbers = {"baseline_ms": list(samples), "patched_ms": [], "speedup": None, "ci95": None, "method": None}
    else:
        numbers = acceptance.together.timing.model_dump(mode="json")
    decision = acceptance.decision if acceptance else "nothing_accepted"
    fresh = _trialled(acceptance.fresh_process) if acceptance and acceptance.fresh_process else None
    return {**numbers, "decision": decision, "fresh_process": fresh}


def _trialled(trial: Trialled) -> dict[str, Any]:
    return trial.model_dump(mode="json", include={"checks", "timing", "decision", "reason"})


def _spend(job: Job, store: Store) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    for run in store.stages.runs(job.id):
        seconds[run.stage.value] = round(seconds.get(run.stage.value, 0.0) + (run.seconds or 0.0), 3)
    return {"seconds": seconds, "total_seconds": round(sum(seconds.values()), 3), "budget_seconds": job.request.budget.seconds}
