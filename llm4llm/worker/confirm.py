"""The last word on a set of patches: the unmodified script in a fresh process, with a bundle of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from llm4llm.kit import counted, fresh_untrusted, open_untrusted, write_atomic
from llm4llm.sandbox import ChildSpec, Ok, Sandbox
from llm4llm.schema.acceptance import Acceptance, Patch, Trialled
from llm4llm.schema.capture import Capture
from llm4llm.schema.reason import Reason
from llm4llm.schema.results import Results
from llm4llm.stages.acceptance.decide import decided, dropped
from llm4llm.stages.bundle.pack import archived, bundle_files
from llm4llm.stages.bundle.run import contents_of
from llm4llm.store import Store
from llm4llm.worker.host import HostSetting
from llm4llm.worker.output import difference
from llm4llm.worker.scratch import own_folder

MODULE = "llm4llm.harness.launch"
PAIRS = 20
_MOST_BYTES = 256 << 20  # of what a script prints
_MOST_REPORT_BYTES = 4 << 20
GRACE_S = 60.0  # imports and the last pair, on top of what was planned
MIN_PAIRING_S = 5.0
_PATCHED, _PLAIN = "patched", "plain"


class _Site(BaseModel):
    """A place of the model as the report counts it; `model` names it for people."""

    model: str = ""
    patch: str
    path: str
    hits: int
    fallbacks: int
    fallback_reasons: dict[str, int]
    disabled: str | None


class _Pairs(BaseModel):
    baseline_ms: tuple[float, ...]
    patched_ms: tuple[float, ...]
    method: str


class _Report(BaseModel):
    """What is used of a report: a script shares the process that writes it, so it may say anything."""

    applied: bool
    reason: str | None
    sites: tuple[_Site, ...]
    pairs: _Pairs | None
    error: str | None


@dataclass(frozen=True)
class _Run:
    """One run of the script that has ended. `report` is None if the process ended before it could write one."""

    exit_code: int | None  # None: it was ended because of its time limit
    stdout: bytes
    report: dict[str, Any] | None
    last_line: str  # of what the process itself said


class Confirmation:
    """Implements the stages' FreshProcess: same output, same exit code, every patch on the active path, and the gain again."""

    def __init__(self, sandbox: Sandbox, setting: HostSetting, store: Store) -> None:
        self._sandbox = sandbox
        self._setting = setting
        self._store = store

    def __call__(self, patches: tuple[Patch, ...], time_limit_s: float, excuse: str | None = None) -> Trialled:
        """Kept only if everything agrees with the run that was captured; a process that dies is a reason to drop."""
        job = self._setting.job
        results = self._store.stages.results(job.id)
        assert results.capture is not None
        folder = fresh_untrusted(self._setting.scratch, "confirm")
        bundle = own_folder(self._setting.scratch) / "bundle.zip"
        write_atomic(bundle, self._packed(patches, results))
        run = self._run(_PATCHED, folder, bundle, results.capture.wall_ms / 1e3, time_limit_s)
        if run.exit_code is None:
            return dropped(
                patches, "fresh_timeout", f"the script with the bundle had not ended in a fresh process after {time_limit_s:.0f} s"
            )
        if run.report is None:
            text = (
                f"the script with the bundle ended with exit code {run.exit_code} and left no report: {run.last_line or 'it said nothing'}"
            )
            return dropped(patches, "fresh_died", text)
        output = self._same_output(run, folder, results.capture, time_limit_s)
        checks = [*(_excused(check, excuse) for check in output), *_active(run.report)]
        pairs = run.report["pairs"]
        if pairs is None and all(check["passed"] for check in checks):
            return dropped(patches, "not_measured", f"in a fresh process {run.report['error'] or 'nothing was measured'}")
        sites = _sites(run.report["sites"])
        return decided(patches, Ok({**(pairs or {}), "checks": checks, "sites": sites, "restored": True}), job.request.min_gain)

    def _packed(self, patches: tuple[Patch, ...], results: Results) -> bytes:
        reason = Reason(code="to_be_confirmed", text="a trial bundle")
        trial = Acceptance(trials=(), kept=patches, together=None, fresh_process=None, decision="accepted", reason=reason)
        return archived(bundle_files(contents_of(self._setting.job, trial, results, self._store.blobs)))

    def _run(self, name: str, folder: Path, bundle: Path | None, script_s: float, time_limit_s: float) -> _Run:
        """Run the script once; with a bundle, its driver calls are repeated in pairs afterwards, as long as time is left."""
        request, setting = self._setting.job.request, self._setting
        stdout, report = folder / f"{name}.stdout", folder / f"{name}.json"
        own = ["--stdout", str(stdout), "--stderr", str(folder / f"{name}.stderr"), "--report", str(report)]
        own += ["--script-time-limit", str(max(time_limit_s, 2 * script_s))]
        if request.stdin is not None:
            own += ["--stdin", request.stdin]
        if bundle is not None:
            pairing_s = max(MIN_PAIRING_S, time_limit_s - 1.5 * script_s)
            own += ["--bundle", str(bundle), "--pairs", str(PAIRS), "--time-limit", str(pairing_s)]
        spec = ChildSpec(
            module=MODULE,
            python=request.python,
            working_directory=Path(request.working_directory),
            arguments=(*own, request.script, "--", *request.arguments),
            environment=request.environment,
            limits=setting.limits,
            files=setting.files,
            channel=False,
        )
        child = self._sandbox.start(spec)
        try:
            exit_code = child.wait(time_limit_s + 2 * script_s + GRACE_S)
        finally:
            child.kill()
        said = child.stderr_tail().strip().splitlines()
        return _Run(
            exit_code=exit_code,
            stdout=_read(_MOST_BYTES, setting.scratch, folder.name, stdout.name) or b"",
            report=_report(_read(_MOST_REPORT_BYTES, setting.scratch, folder.name, report.name)),
            last_line=said[-1] if said else "",
        )

    def _same_output(self, run: _Run, folder: Path, captured: Capture, time_limit_s: float) -> list[dict[str, Any]]:
        """Checks of exit code and standard output against the captured run, which had no patches."""
        expected = _read(_MOST_BYTES, self._setting.scratch, "script.stdout") or b""
        code = captured.end.exit_code
        same_code = {"name": "exit_code", "passed": run.exit_code == code, "detail": f"{run.exit_code}, without the bundle {code}"}
        found = difference(expected, run.stdout, None)
        if found is None:
            return [same_code, {"name": "stdout", "passed": True, "detail": f"{counted(len(expected), 'byte')}, equal"}]
        # some scripts print times or addresses: what differs between two unpatched runs can't be asked of the patched one
        plain = self._run(_PLAIN, folder, None, captured.wall_ms / 1e3, time_limit_s)
        still = difference(expected, run.stdout, plain.stdout)
        text = "equal, but for numbers that differ between two runs without the bundle as well" if still is None else still
        return [same_code, {"name": "stdout", "passed": still is None, "detail": text}]


def _excused(check: dict[str, Any], excuse: str | None) -> dict[str, Any]:
    """Text that follows from a token which the model's own rounding decides can't be asked to stay; everything else can."""
    if check["passed"] or check["name"] != "stdout" or excuse is None:
        return check
    return {**check, "passed": True, "excused": True, "detail": f"{check['detail']}; explained on the live model: {excuse}"}


def _active(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Checks that the patches were put in place and that none of them gave up."""
    applied = {"name": "applies", "passed": report["applied"], "detail": report["reason"] or "applied"}
    failed = [site for site in report["sites"] if site["disabled"]]
    detail = f"{failed[0]['path']}: {failed[0]['disabled']}" if failed else "none"
    return [applied, {"name": "exceptions", "passed": not failed, "detail": detail}]


def _sites(listed: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Counters by candidate."""
    sites: dict[str, list[dict[str, Any]]] = {}
    for site in listed:
        sites.setdefault(site["patch"], []).append({name: site[name] for name in ("path", "hits", "fallbacks", "fallback_reasons")})
    return sites


def _read(most: int, root: Path, *parts: str) -> bytes | None:
    """A file that the script's own process wrote; None where there is no plain file."""
    try:
        with open_untrusted(root, *parts) as file:
            return file.read(most)
    except FileNotFoundError:
        return None


def _report(content: bytes | None) -> dict[str, Any] | None:
    """None for what is no report."""
    try:
        return _Report.model_validate(json.loads(content or b"")).model_dump()
    except (ValueError, RecursionError, ValidationError):
        return None
