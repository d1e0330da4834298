"""The live host: `python -m llm4llm.harness.host SPEC.json`. Runs the user's script, keeps its models, answers the parent's requests.

Until the script itself imports torch, nothing here does: variables that a script sets before that must count.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm4llm.harness import script
from llm4llm.harness.channel import Channel
from llm4llm.harness.confine import confine

if TYPE_CHECKING:
    from llm4llm.harness.intercept import Interception
    from llm4llm.harness.recording import Recorder
    from llm4llm.harness.workload import Workload

Payload = dict[str, Any]
_TORCH = "torch"


class Disorder(Exception):
    """A request came when it made no sense."""

    kind = "disorder"


class NoModel(Exception):
    """The script ran no model, so that there is nothing to answer with."""

    kind = "no_model"


class Host:
    """State between requests: what was recorded, once the script has run."""

    def __init__(self, run: script.ScriptRun, channel: Channel) -> None:
        self._run = run
        self._channel = channel
        self._recorder: Recorder | None = None
        self._interception: Interception | None = None
        self._captured = False
        self._workload: Workload | None = None

    @property
    def workload(self) -> "Workload":
        """Raises Disorder before the capture, NoModel if the script called no model."""
        if not self._captured:
            raise Disorder("the script has not run yet; capture comes first")
        if self._workload is None or not self._workload.drivers:
            raise NoModel("the script called no model")
        return self._workload

    def capture(self) -> Payload:
        """Run the script; the fields of schema.Capture except `environment`."""
        if self._captured:
            raise Disorder("the script has run already")
        self._captured = True
        os.register_at_fork(after_in_child=self._forked)
        script.prepare(self._run)
        finder = TorchFinder(self._watch)
        sys.meta_path.insert(0, finder)
        start = time.perf_counter()
        try:
            end = script.execute(self._run, finished=self._finish)
        finally:
            finder.withdraw()
        wall_ms = (time.perf_counter() - start) * 1e3
        partial = end.kind == "time_up"
        recorded: Payload = {"roots": [], "drivers": [], "notes": []}
        if self._workload is not None:
            self._workload.partial = partial
            recorded = self._workload.to_json()
        return {**recorded, "end": vars(end), "wall_ms": wall_ms, "partial": partial}

    def _watch(self) -> None:
        from llm4llm.harness.intercept import Interception
        from llm4llm.harness.recording import Recorder

        self._recorder = Recorder(self._channel.event)
        self._interception = Interception(self._recorder)
        self._interception.install()

    def _finish(self) -> None:
        if self._recorder is not None and self._interception is not None:
            self._interception.remove()
            dynamo: Any = sys.modules.get("torch._dynamo.utils")
            if dynamo is not None and dynamo.counters["frames"]["total"]:
                self._recorder.note("compiled", "parts of the script run through torch.compile; model calls inside them are not seen")
            self._workload = self._recorder.close()

    def _forked(self) -> None:
        if self._recorder is not None:
            self._recorder.abandon()
        self._channel.forget()


class TorchFinder:
    """A meta path finder that calls `loaded` once, when `torch` has been imported by whoever wanted it."""

    def __init__(self, loaded: Callable[[], None]) -> None:
        self._loaded = loaded

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _TORCH:
            return None
        self.withdraw()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            execute(module)
            try:
                self._loaded()
            except Exception:
                # never the script's problem; the capture then shows no model, and the log says why
                traceback.print_exc(file=sys.__stderr__)

        loader.exec_module = exec_module
        return spec

    def withdraw(self) -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)


def _environment(host: Host, payload: Payload, channel: Channel) -> Payload:
    return _part("machine").environment()


def _profile(host: Host, payload: Payload, channel: Channel) -> Payload:
    return _part("profiler").profile(host.workload, payload, channel.event)


def _match(host: Host, payload: Payload, channel: Channel) -> Payload:
    return _part("profiler").match(host.workload, payload)


def _extract(host: Host, payload: Payload, channel: Channel) -> Payload:
    return _part("extract").extract(host.workload, payload)


def _trial(host: Host, payload: Payload, channel: Channel) -> Payload:
    return _part("trial").trial(host.workload, payload)


OPERATIONS: dict[str, Callable[[Host, Payload, Channel], Payload]] = {
    "capture": lambda host, payload, channel: host.capture(),
    "environment": _environment,
    "profile": _profile,
    "match": _match,
    "extract": _extract,
    "trial": _trial,
}


def _part(name: str) -> Any:
    """A part of the harness that needs torch: imported when it is first asked for, after the script has run."""
    return importlib.import_module(f"llm4llm.harness.{name}")


def serve(host: Host, channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    for op, payload in channel.requests():
        operation = OPERATIONS.get(op)
        if operation is None:
            channel.error("protocol", f"the live host does not know {op!r}")
            continue
        try:
            result = operation(host, payload, channel)
        except Exception as error:
            traceback.print_exc()
            channel.error(_kind(error), f"{op}: {type(error).__name__}: {error}")
        else:
            channel.ok(result)


def _kind(error: Exception) -> str:
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return "oom" if out_of_memory else str(getattr(error, "kind", "internal"))


def main() -> int:
    """Exit code 0 when the parent has closed the channel."""
    confine()
    channel = Channel.inherited()
    run = script.ScriptRun.from_json(json.loads(Path(sys.argv[1]).read_text()))
    serve(Host(run, channel), channel)
    return 0


if __name__ == "__main__":
    # The script becomes __main__; nothing of ours may live in the module that it replaces.
    sys.exit(importlib.import_module("llm4llm.harness.host").main())
