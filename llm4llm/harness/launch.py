"""Run an unmodified script as `__main__` with a bundle applied to its models.

    python -m llm4llm.harness.launch --bundle B.zip [--report REPORT.json] SCRIPT [-- ARGS]

Standard streams, arguments, folder and exit code are the script's own. Models that the bundle was made for get it at the first call into
them; where it fits none, the script runs unpatched and one line on stderr says why. A bundle that is damaged stops the run before the
script starts, with exit code 2. With `--counters` one line on stderr says at the end how often the patches ran.

With `--stdout`, `--stderr` and `--stdin` the script's streams are files. Then `--pairs N` measures: when the script has ended, its driver
calls are replayed with the patches off and on, in ABBA order, and the report gets the samples.

The report: {"end": {"kind", "exit_code", "error"} or null, "applied": bool, "reason": text or null, "sites": [...], "drivers": [{"model",
"method", "wall_ms"}], "pairs": {"baseline_ms", "patched_ms", "method"} or null, "error": text or null}.
"""

import argparse
import atexit
import contextlib
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm4llm.harness import script, streams, traces
from llm4llm.harness.confine import forget_parent
from llm4llm.harness.host import TorchFinder
from llm4llm.harness.timelimit import TimeLimit
from llm4llm.harness.wording import counted
from llm4llm.runtime.loader import Bundle, Refused

if TYPE_CHECKING:
    from llm4llm.harness.applying import Applier
    from llm4llm.harness.intercept import Interception
    from llm4llm.harness.workload import Workload

EXIT_UNUSABLE = 2


class Launch:
    """One run. torch is imported by the script, or not at all."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._bundle: Bundle | None = None
        self._applier: Applier | None = None
        self._recorder: Any = None  # a PatchingRecorder where pairs are wanted, else a Lookout
        self._workload: Workload | None = None
        self._interception: Interception | None = None
        self._process = os.getpid()
        self._fault: str | None = None  # of ours, while the script ran
        self.report: dict[str, Any] = {
            "end": None,
            "applied": False,
            "reason": None,
            "sites": [],
            "drivers": [],
            "pairs": None,
            "error": None,
        }

    def open(self) -> None:
        """Verify the bundle. Raises Refused."""
        if self._options.bundle is not None:
            self._bundle = Bundle(self._options.bundle)
            _ = self._bundle.manifest

    def run(self) -> int:
        """The script's exit code."""
        options = self._options
        finder = TorchFinder(self._watch)
        if self._bundle is not None or options.pairs:
            sys.meta_path.insert(0, finder)
        run = script.ScriptRun(
            script=os.path.abspath(options.script),
            arguments=tuple(options.arguments),
            working_directory=os.getcwd(),
            stdout=options.stdout or "",
            stderr=options.stderr or options.stdout or "",
            stdin=options.stdin,
            replay_log=os.devnull,
            time_limit_s=options.script_time_limit,
        )
        script.prepare(run)
        try:
            return self._with_files(run) if options.stdout else self._inherited(run)
        finally:
            finder.withdraw()

    def _inherited(self, run: script.ScriptRun) -> int:
        """The process ends as the script's own would: what follows its last line is left to the interpreter."""
        sys.argv[0] = self._options.script
        atexit.register(self._finish)  # before anything that the script registers, so that it runs after all of that
        with traces.hidden():
            try:
                script.run_main(run.script)
            except BaseException as error:
                end = script.ended(error, TimeLimit(None))
            else:
                end = script.ended(None, TimeLimit(None))
        self.report["end"] = vars(end)
        return end.exit_code or 0

    def _finish(self) -> None:
        """At the very end of the process, once: say what became of the bundle."""
        if os.getpid() != self._process:
            return
        streams.flush()
        self._settle()
        if self.report["reason"] is not None:
            print(f"llm4llm: the bundle was not applied: {self.report['reason']}", file=sys.__stderr__)
        elif self._options.counters and self.report["applied"]:
            print(f"llm4llm: {_counters(self.report['sites'])}", file=sys.__stderr__)
        self._write_report()

    def _with_files(self, run: script.ScriptRun) -> int:
        end = script.execute(run, finished=self._settle)
        self.report["end"] = vars(end)
        if self._options.pairs and self.report["applied"]:
            try:
                self.report["pairs"] = self._pairs()
            except Exception as error:
                self.report["error"] = f"the driver calls could not be repeated: {type(error).__name__}: {error}"
        self._write_report()
        return end.exit_code if end.exit_code is not None else 1

    def _watch(self) -> None:
        """Called when torch has been imported."""
        try:
            applying: Any = importlib.import_module("llm4llm.harness.applying")
            intercept: Any = importlib.import_module("llm4llm.harness.intercept")
            assert self._bundle is not None
            self._applier = applying.Applier(self._bundle)
            kind = applying.PatchingRecorder if self._options.pairs else applying.Lookout
            self._recorder = kind(self._applier)
            self._interception = intercept.Interception(self._recorder)
            self._interception.install()
        except Exception as error:
            self._fault = f"{type(error).__name__}: {error}"

    def _settle(self) -> None:
        """What became of the bundle while the script ran; the wrappers come off."""
        if self._interception is not None:
            self._interception.remove()
            self._interception = None
        applier, recorder = self._applier, self._recorder
        if self._bundle is not None:
            self.report["reason"] = self._fault or (applier.reason() if applier is not None else "the script did not import torch")
        if applier is not None:
            self.report |= {"applied": bool(applier.applied), "sites": applier.sites()}
        if self._options.pairs and recorder is not None:
            self._workload = recorder.close()
            calls = [(driver.root.module_class, driver.method, wall) for driver in self._workload.drivers for wall in driver.wall_ms]
            self.report["drivers"] = [{"model": model, "method": method, "wall_ms": wall} for model, method, wall in calls]
        elif recorder is not None:
            self.report["drivers"] = recorder.calls

    def _pairs(self) -> dict[str, Any]:
        pairing: Any = importlib.import_module("llm4llm.harness.pairing")
        paired: dict[str, Any] = pairing.paired(self._workload, self._applier, self._options.pairs, self._options.time_limit)
        return paired

    def _write_report(self) -> None:
        path = self._options.report
        if path is None:
            return
        partial = Path(f"{path}.{os.getpid()}.partial")
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(self.report))
            partial.replace(path)


def _counters(sites: list[dict[str, Any]]) -> str:
    """How often every patch ran and how often the original did in its place."""
    patches: dict[str, list[dict[str, Any]]] = {}
    for site in sites:
        patches.setdefault(site["patch"], []).append(site)
    lines = []
    for name, found in patches.items():
        hits, fallbacks = (sum(site[what] for site in found) for what in ("hits", "fallbacks"))
        lines.append(f"{name}: {counted(hits, 'hit')}, {counted(fallbacks, 'fallback')} at {counted(len(found), 'site')}")
    return "; ".join(lines)


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Options; relative paths are made absolute, because the script may change the folder."""
    parser = argparse.ArgumentParser(
        prog="python -m llm4llm.harness.launch", description="Run a script with a bundle applied to its models."
    )
    parser.add_argument("--bundle", type=os.path.abspath, help="archive or unpacked folder; without it the script runs as it is")
    parser.add_argument("--report", type=os.path.abspath, help="write what happened to this file (JSON)")
    parser.add_argument("--counters", action="store_true", help="say on stderr how often the patches ran")
    for name in ("stdin", "stdout", "stderr"):
        parser.add_argument(f"--{name}", type=os.path.abspath, help=f"file that is the script's {name}")
    parser.add_argument("--script-time-limit", type=float, help="seconds for the script; needs --stdout")
    parser.add_argument("--pairs", type=int, default=0, help="measure up to this many pairs once the script has ended; needs --stdout")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for the pairs")
    parser.add_argument("script")
    own, theirs = arguments, []
    if "--" in arguments:
        cut = arguments.index("--")
        own, theirs = arguments[:cut], arguments[cut + 1 :]
    options = parser.parse_args(own)
    options.arguments = theirs
    if options.stdout is None and (options.pairs or options.script_time_limit is not None or options.stdin or options.stderr):
        parser.error("--pairs, --script-time-limit, --stdin and --stderr need --stdout")
    if options.pairs and options.bundle is None:
        parser.error("--pairs needs --bundle")
    return options


def main() -> int:
    """The script's exit code, or 2 if nothing was run."""
    forget_parent()
    launch = Launch(parsed(sys.argv[1:]))
    try:
        launch.open()
    except Refused as refused:
        print(f"llm4llm: {refused.text}; nothing was run", file=sys.stderr)  # noqa: T201
        return EXIT_UNUSABLE
    return launch.run()


if __name__ == "__main__":
    # The script becomes __main__; nothing of ours may live in the module that it replaces.
    sys.exit(importlib.import_module("llm4llm.harness.launch").main())
