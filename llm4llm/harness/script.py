"""Run an unmodified script as `__main__`, the way `python script.py` would, in a process that goes on afterwards."""

import builtins
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from llm4llm.harness import exits, streams, traces
from llm4llm.harness.timelimit import TimeLimit, TimeUp

_ORIGINAL = "LLM4LLM_ORIGINAL_"
_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclass(frozen=True)
class ScriptRun:
    """What to run and where its streams lie; paths are absolute."""

    script: str
    arguments: tuple[str, ...]
    working_directory: str
    stdout: str
    stderr: str
    stdin: str | None
    replay_log: str
    time_limit_s: float | None

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "ScriptRun":
        """Raises KeyError for a missing field; fields of others are left alone."""
        limit = facts.get("time_limit_s")
        return cls(
            script=facts["script"],
            arguments=tuple(facts.get("arguments", ())),
            working_directory=facts["working_directory"],
            stdout=facts["stdout"],
            stderr=facts["stderr"],
            stdin=facts.get("stdin"),
            replay_log=facts["replay_log"],
            time_limit_s=None if limit is None else float(limit),
        )


@dataclass(frozen=True)
class End:
    """How the script ended; the fields of schema.ScriptEnd."""

    kind: str  # returned, exit, raised, time_up
    exit_code: int | None
    error: str | None = None


def prepare(run: ScriptRun) -> None:
    """Make the process look like the script's own: environment, module path, arguments, folder."""
    own_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        original = os.environ.pop(_ORIGINAL + name, None)
        os.environ.pop(name, None)
        if original is not None:
            os.environ[name] = original
    # our modules stay importable through the package that is already loaded
    if _PACKAGE_ROOT in own_path and _PACKAGE_ROOT in sys.path and _PACKAGE_ROOT not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        sys.path.remove(_PACKAGE_ROOT)
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, os.path.dirname(os.path.realpath(run.script)))
    sys.argv = [run.script, *run.arguments]
    sys.orig_argv = [sys.orig_argv[0], *sys.argv]
    os.chdir(run.working_directory)


def execute(run: ScriptRun, finished: Callable[[], None]) -> End:
    """Run the script and what follows it (threads, exit callbacks, children) with its streams connected.

    `finished` is called when all of that is over. Streams go to the replay log afterwards.
    """
    streams.connect(run.stdin, run.stdout, run.stderr, emptied=True)
    process = os.getpid()
    limit = TimeLimit(run.time_limit_s)
    limit.start()
    with traces.hidden(), exits.ExitCallbacks() as callbacks:
        end = ended(_attempt(limit, lambda: run_main(run.script)), limit)
        for step in (exits.wait_for_threads, callbacks.run, exits.end_children):
            interrupted = _attempt(limit, step)
            if isinstance(interrupted, TimeUp):
                end = _time_up()
    limit.stop()
    streams.flush_files()
    streams.flush()
    if os.getpid() != process:
        # the script forked and let the child run to its end; the host goes on in the parent alone
        os._exit(end.exit_code or 0)
    finished()
    streams.connect(None, run.replay_log, run.replay_log, emptied=False)
    return end


def _attempt(limit: TimeLimit, part: Callable[[], None]) -> BaseException | None:
    """What the part raised, whatever it is."""
    try:
        with limit:
            part()
    except BaseException as error:
        return error
    return None


def run_main(path: str) -> None:
    with io.open_code(path) as file:
        source = file.read()
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __builtins__=builtins, __annotations__={}, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = main
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


def _time_up() -> End:
    return End("time_up", None, "the script's time limit was reached")


def ended(error: BaseException | None, limit: TimeLimit) -> End:
    """What the interpreter would do with the exception that left the script; its text goes to the script's stderr."""
    if limit.fired:
        return _time_up()
    if error is None:
        return End("returned", 0)
    if isinstance(error, SystemExit):
        return End("exit", _exit_code(error))
    traces.strip(error)
    text = type(error).__name__
    with contextlib.suppress(Exception):
        text = traceback.format_exception_only(error)[-1].strip()
    streams.flush()
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as second:
        print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(traces.strip(second))
        print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(error)
    return End("raised", 130 if isinstance(error, KeyboardInterrupt) else 1, text)


def _exit_code(error: SystemExit) -> int:
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    streams.flush()
    print(code, file=sys.stderr)  # noqa: T201
    return 1
