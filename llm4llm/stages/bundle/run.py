"""Pack what was accepted into an archive in the blob store."""

import json
from pathlib import Path

from llm4llm.kit import canonical_json, sha256_bytes
from llm4llm.schema.acceptance import Acceptance, Patch
from llm4llm.schema.bundle import Bundle
from llm4llm.schema.capture import Capture
from llm4llm.schema.job import Job
from llm4llm.schema.results import Results
from llm4llm.schema.verdict import Passed
from llm4llm.stages.bundle.contents import Contents
from llm4llm.stages.bundle.pack import archived, bundle_files
from llm4llm.stages.tools import Blobs, Tools


def run(job: Job, results: Results, tools: Tools) -> Bundle:
    """The bundle of a job whose acceptance kept at least one patch."""
    assert results.acceptance is not None
    assert results.capture is not None
    files = bundle_files(contents_of(job, results.acceptance, results, tools.blobs))
    archive = archived(files)
    return Bundle(
        sha256=tools.blobs.put(archive),
        bytes=len(archive),
        patches=len(results.acceptance.kept),
        manifest_sha256=sha256_bytes(files["manifest.json"]),
    )


def contents_of(job: Job, acceptance: Acceptance, results: Results, blobs: Blobs) -> Contents:
    """What goes into the bundle, gathered from stored results."""
    capture = results.capture
    assert capture is not None
    trials = results.verdict.trials if results.verdict is not None else ()
    kept = {patch.candidate for patch in acceptance.kept}
    verdicts = {one.candidate.id: one.verdict for one in trials if one.candidate.id in kept and isinstance(one.verdict, Passed)}
    return Contents(
        acceptance=acceptance,
        environment=capture.environment,
        roots=capture.roots,
        candidates=_candidates(acceptance.kept, blobs),
        verdicts=verdicts,
        origin=_origin(job, capture),
    )


def _candidates(patches: tuple[Patch, ...], blobs: Blobs) -> dict[str, bytes]:
    return {patch.candidate_sha256: blobs.path(patch.candidate_sha256).read_bytes() for patch in patches}


def _origin(job: Job, capture: Capture) -> dict[str, object]:
    """Where the bundle comes from. The script's folder and arguments stay out: they tell about its owner."""
    request = job.request
    facts = {"job": job.id, "script": Path(request.script).name, "script_sha256": request.script_sha256}
    counts = {driver.id: {"root": driver.root, "method": driver.method, "count": driver.count} for driver in capture.drivers}
    return dict(json.loads(canonical_json({**facts, "drivers": counts})))
