"""Confirm a bundle in fresh processes: the unmodified script without it and with it.

Once without gives the output to compare with; once with it must print the same, end the same, and run every patch. When the script has
ended, its driver calls are replayed in that same process with the patches off and on, which gives paired times. Lines of output that also
differ between two runs without the bundle (times, dates, temporary names) are left out of the comparison.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm4llm.kit import write_atomic
from llm4llm.kit.statistics import BadSamples, bootstrap_ratio
from llm4llm.sandbox import ChildSpec, Limits, Sandbox
from llm4llm.schema.acceptance import Check, Patch, Site, Trialled
from llm4llm.schema.job import Request
from llm4llm.schema.measurement import Paired
from llm4llm.schema.reason import Reason
from llm4llm.stages.bundle.contents import Contents
from llm4llm.stages.bundle.pack import pack

MODULE = "llm4llm.harness.launch"
PAIRS = 60
MIN_PAIRS_S = 2.0
GRACE_S = 20.0  # start and end of a process around the script


@dataclass(frozen=True)
class Scene:
    """Where the processes run. `folder` is emptied of earlier confirmations by its owner."""

    sandbox: Sandbox
    limits: Limits
    folder: Path
    script_time_limit_s: float


@dataclass(frozen=True)
class Launched:
    """One run of the script: its report, or why there is none."""

    report: dict[str, Any] | None
    stdout: bytes
    seconds: float
    failure: str | None

    @property
    def end(self) -> dict[str, Any]:
        return (self.report or {}).get("end") or {}


def confirm(contents: Contents, request: Request, scene: Scene, time_limit_s: float) -> Trialled:
    """The trial of the bundle's patches in fresh processes; `keep` only if output agrees and the gain clears the request's threshold."""
    started = time.monotonic()
    patches = contents.acceptance.kept
    scene.folder.mkdir(parents=True, exist_ok=True)
    bundle = scene.folder / "bundle.zip"
    write_atomic(bundle, pack(contents))
    plain = launched("plain", (), request, scene)
    if plain.report is None:
        return _dropped(patches, (), {}, "plain_run_failed", f"the script without patches: {plain.failure}")
    left = time_limit_s - (time.monotonic() - started)
    # the patched script must not be slower than the plain one, and a second plain run may be needed
    for_pairs = max(MIN_PAIRS_S, left - 2.0 * plain.seconds)
    patched = launched(
        "patched", ("--bundle", str(bundle), "--pairs", str(PAIRS), "--time-limit", f"{for_pairs:.1f}"), request, scene, for_pairs
    )
    if patched.report is None:
        return _dropped(patches, (), {}, "patched_run_failed", f"the script with the bundle: {patched.failure}")
    report = patched.report
    sites = _sites(report)
    checks = [
        _applied(report, patches, sites),
        _same_end(plain, patched),
        _same_output(plain, patched, lambda: launched("again", (), request, scene)),
    ]
    failed = next((check for check in checks if not check.passed), None)
    if failed is not None:
        return _dropped(patches, tuple(checks), sites, f"check_{failed.name}", f"in a fresh process: {failed.detail}")
    return _decided(patches, tuple(checks), sites, report, request.min_gain)


def launched(name: str, options: tuple[str, ...], request: Request, scene: Scene, extra_s: float = 0.0) -> Launched:
    """Run the script in a process of its own, with streams in files named after `name`."""
    files = {kind: scene.folder / f"{name}.{kind}" for kind in ("stdout", "stderr", "report")}
    for file in files.values():
        file.unlink(missing_ok=True)
    streams = [f"--{kind}={files[kind]}" for kind in files] + ([f"--stdin={request.stdin}"] if request.stdin else [])
    limit = f"--script-time-limit={scene.script_time_limit_s}"
    spec = ChildSpec(
        module=MODULE,
        python=request.python,
        working_directory=Path(request.working_directory),
        arguments=(*options, *streams, limit, request.script, "--", *request.arguments),
        environment=request.environment,
        limits=scene.limits,
        channel=False,
    )
    started = time.monotonic()
    child = scene.sandbox.start(spec)
    try:
        code = child.wait(scene.script_time_limit_s + extra_s + GRACE_S)
    finally:
        child.kill()
    seconds = time.monotonic() - started
    stdout = files["stdout"].read_bytes() if files["stdout"].exists() else b""
    try:
        report = json.loads(files["report"].read_text())
    except (OSError, ValueError):
        how = "took longer than its time limit" if code is None else f"ended with exit code {code} and no report"
        return Launched(None, stdout, seconds, f"{how} {child.stderr_tail()[-300:]}".strip())
    return Launched(report, stdout, seconds, None)


def _sites(report: dict[str, Any]) -> dict[str, tuple[Site, ...]]:
    found: dict[str, list[Site]] = {}
    for site in report["sites"]:
        counted = Site(path=site["path"], hits=site["hits"], fallbacks=site["fallbacks"], fallback_reasons=site["fallback_reasons"])
        found.setdefault(site["patch"], []).append(counted)
    return {name: tuple(sites) for name, sites in found.items()}


def _applied(report: dict[str, Any], patches: tuple[Patch, ...], sites: dict[str, tuple[Site, ...]]) -> Check:
    if not report["applied"]:
        return Check(name="applied", passed=False, detail=f"the bundle was not applied: {report['reason']}")
    disabled = [site for site in report["sites"] if site["disabled"] is not None]
    if disabled:
        return Check(
            name="applied", passed=False, detail=f"{disabled[0]['patch']} at {disabled[0]['path']} raised {disabled[0]['disabled']}"
        )
    idle = [patch.candidate for patch in patches if not sum(site.hits for site in sites.get(patch.candidate, ()))]
    if idle:
        return Check(name="applied", passed=False, detail=f"{idle[0]} did not run once")
    hits = sum(site.hits for found in sites.values() for site in found)
    return Check(name="applied", passed=True, detail=f"{hits} calls went through patches while the script ran")


def _same_end(plain: Launched, patched: Launched) -> Check:
    one, other = ((run.end.get("kind"), run.end.get("exit_code")) for run in (plain, patched))
    detail = (
        f"ended with exit code {one[1]} both times" if one == other else f"without patches it {_told(one)}, with them it {_told(other)}"
    )
    return Check(name="exit_code", passed=one == other, detail=detail)


def _told(end: tuple[Any, Any]) -> str:
    return "did not end in time" if end[0] == "time_up" else f"ended with exit code {end[1]}"


def _same_output(plain: Launched, patched: Launched, again: Any) -> Check:
    if plain.stdout == patched.stdout:
        return Check(name="stdout", passed=True, detail=f"the same {len(plain.stdout)} bytes")
    repeated = again()
    lines, others, patched_lines = (run.stdout.splitlines() for run in (plain, repeated, patched))
    if repeated.report is None or len(lines) != len(others) or len(lines) != len(patched_lines):
        return Check(
            name="stdout", passed=False, detail=f"it prints {len(patched_lines)} lines that differ from the {len(lines)} without patches"
        )
    unstable = {at for at, (line, other) in enumerate(zip(lines, others, strict=True)) if line != other}
    differing = [at for at, (line, other) in enumerate(zip(lines, patched_lines, strict=True)) if line != other and at not in unstable]
    if differing:
        return Check(name="stdout", passed=False, detail=f"line {differing[0] + 1} of its output differs from that without patches")
    stable = len(lines) - len(unstable)
    return Check(name="stdout", passed=True, detail=f"the same text in {stable} lines; {len(unstable)} differ in every run, patches or not")


def _decided(
    patches: tuple[Patch, ...], checks: tuple[Check, ...], sites: dict[str, tuple[Site, ...]], report: dict[str, Any], threshold: float
) -> Trialled:
    pairs = report["pairs"] or {"baseline_ms": [], "patched_ms": [], "method": ""}
    try:
        speedup, interval = bootstrap_ratio(pairs["baseline_ms"], pairs["patched_ms"])
    except BadSamples as error:
        return _dropped(patches, checks, sites, "no_timing", f"no times in a fresh process: {report['error'] or error}")
    baseline, patched = tuple(pairs["baseline_ms"]), tuple(pairs["patched_ms"])
    timing = Paired(baseline_ms=baseline, patched_ms=patched, method=pairs["method"], ci95=interval, speedup=speedup)
    text = f"{speedup:.3f}x end to end in a fresh process (95 % interval {interval[0]:.3f} to {interval[1]:.3f})"
    kept = interval[0] > threshold
    reason = Reason(code="gain" if kept else "not_confirmed", text=f"{text}, {'' if kept else 'not '}above {threshold:.3f}")
    names = tuple(patch.candidate for patch in patches)
    return Trialled(patches=names, checks=checks, sites=sites, timing=timing, decision="keep" if kept else "drop", reason=reason)


def _dropped(patches: tuple[Patch, ...], checks: tuple[Check, ...], sites: dict[str, tuple[Site, ...]], code: str, text: str) -> Trialled:
    names = tuple(patch.candidate for patch in patches)
    return Trialled(patches=names, checks=checks, sites=sites, timing=None, decision="drop", reason=Reason(code=code, text=text))
