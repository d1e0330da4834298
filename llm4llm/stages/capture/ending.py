"""What the way in which the script ended means for its job."""

from typing import Literal, NamedTuple

from llm4llm.schema.capture import Capture, ScriptEnd
from llm4llm.schema.reason import Reason

USAGE = "usage: "


class Ending(NamedTuple):
    """How the job ends because of its script."""

    status: Literal["succeeded", "failed"]
    reason: Reason


def ending(capture: Capture) -> Ending | None:
    """None for a script that ended well after calling a model: there is something to optimise."""
    failure = _failure(capture)
    if failure is not None:
        return Ending("failed", failure)
    if not capture.roots:
        return Ending("succeeded", Reason(code="no_model", text="nothing to optimise: no model was called"))
    return None


def exit_text(end: ScriptEnd) -> str:
    """The script's own end in words."""
    if end.exit_code is None:
        return "no exit code"
    return f"exit code {end.exit_code}" if end.exit_code >= 0 else f"signal {-end.exit_code}"


def _failure(capture: Capture) -> Reason | None:
    end = capture.end
    kept = "; what ran before it was profiled" if capture.drivers else ""
    if end.kind == "time_up":
        seconds = capture.wall_ms / 1e3
        text = f"time budget used up: the script had not ended after {seconds:.0f} s{kept}; make it end sooner or give a larger --budget"
        return Reason(code="time_budget", text=text)
    if end.kind == "died":
        text = f"the script's process ended with {exit_text(end)} ({end.error or 'no message'}){kept}; run it alone to see why"
        return Reason(code="script_died", text=text)
    if end.kind == "returned" or (end.kind == "exit" and not end.exit_code):
        return None
    if end.error is not None and end.error.startswith(USAGE) and end.exit_code == 2:
        wanted = end.error.removeprefix(USAGE)
        text = f"the script wants arguments: pass them after --, over HTTP as a JSON list in args (exit code 2: {wanted})"
        return Reason(code="script_wants_arguments", text=text)
    what = end.error or "it left through sys.exit"
    text = f"the script failed on its own with {exit_text(end)}: {what}{kept}; {_advice(what)}, its traceback is in script.stderr"
    return Reason(code="script_failed", text=text)


def _advice(what: str) -> str:
    """What to do about an error, from its first words."""
    if what.startswith("ModuleNotFoundError"):
        return "hand the module's file in with the script, or install it for the Python that runs the script"
    return "correct the script"
