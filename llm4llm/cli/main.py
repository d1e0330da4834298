"""Entry point: splits off the script's own arguments, runs the command, and turns errors into one line and an exit code."""

import signal
import sys
from types import FrameType

import typer

from llm4llm.cli import say
from llm4llm.cli.service_commands import app
from llm4llm.errors import Llm4llmError

# typer carries its own copy of click in some versions and uses click in others
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
_TERMINATED = 128 + signal.SIGTERM


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; its exit code."""
    own, script_arguments = _split(arguments)
    own = _one_word(own)
    try:
        code = typer.main.get_command(app).main(own, prog_name=say.NAME, standalone_mode=False, obj=script_arguments)
    except Llm4llmError as fault:
        return say.error(fault)
    except _USAGE_ERROR as fault:
        return _misused(fault)
    except say.Interrupted:
        return say.EXIT_INTERRUPTED
    except (KeyboardInterrupt, typer.Abort):
        say.note("interrupted")
        return say.EXIT_INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; nothing more can be said there, not even at exit
        sys.stdout = sys.stderr
        return say.EXIT_FAILED
    return code if isinstance(code, int) else say.EXIT_OK


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Ours, and what stands behind the first `--`: that is the script's, untouched."""
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def _one_word(own: list[str]) -> list[str]:
    """`judge selftest` is a command of its own; a task folder of that name still has a candidate behind it."""
    words = say.SELFTEST.split()
    if own[: len(words)] == words and (own[len(words) :] or ["-"])[0].startswith("-"):
        return [say.SELFTEST, *own[len(words) :]]
    return own


def _misused(fault: Exception) -> int:
    context = getattr(fault, "ctx", None)
    command = context.command_path if context is not None else say.NAME
    message = getattr(fault, "message", "") or str(fault)
    format_message = getattr(fault, "format_message", None)
    if callable(format_message):
        message = str(format_message())
    hint = f"see {command} --help"
    if "No such option" in message or "unexpected extra argument" in message:
        hint += "; arguments of the script itself go after --"
    say.note(f"{message.rstrip('.').replace(chr(10), ' ')}: {hint}")
    return say.EXIT_UNUSABLE


def _terminate(number: int, frame: FrameType | None) -> None:
    """Leave like after Ctrl-C, through every `finally`."""
    raise SystemExit(_TERMINATED)
