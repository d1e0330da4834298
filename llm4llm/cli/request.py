"""From options to the request that is stored."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from llm4llm.errors import BadArguments, BadInterpreter
from llm4llm.kit import parse_duration, write_atomic
from llm4llm.sandbox import scrubbed, with_given
from llm4llm.schema.job import Budget, Request, StageName


@dataclass(frozen=True)
class Options:
    """What the user typed, not yet checked."""

    script: Path
    script_arguments: tuple[str, ...] = ()
    python: str | None = None
    environment: tuple[str, ...] = ()
    stdin: str | None = None
    target: str = "auto"
    agent: str = "seeds"
    budget: str = "10m"
    min_gain: float = 1.02
    stop_after: StageName | None = None


def make_request(options: Options, home: Path) -> Request:
    """The request; whether its script can be run at all is told when it is submitted. BadArguments, BadInterpreter."""
    if not 1.0 <= options.min_gain < 1000.0:
        raise BadArguments(f"--min-gain {options.min_gain:g} is no gain", "give a ratio of at least 1, like 1.02")
    return Request(
        script=str(Path(os.path.abspath(options.script))),
        script_sha256="",
        arguments=options.script_arguments,
        working_directory=str(Path.cwd()),
        python=interpreter(options.python),
        environment=with_given(scrubbed(os.environ), options.environment, os.environ),
        stdin=_stdin(options.stdin, home),
        target=options.target,
        agent=options.agent,
        budget=Budget(seconds=parse_duration(options.budget)),
        min_gain=options.min_gain,
        stop_after=options.stop_after,
    )


def interpreter(python: str | None) -> str:
    """Absolute path of the interpreter; symbolic links stay, because a virtual environment is known by its link."""
    if python is None:
        return sys.executable
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise BadInterpreter(python, "there is no such program")
    return os.path.abspath(found)


def _stdin(name: str | None, home: Path) -> str | None:
    """The file that the script reads; `-` keeps what we are given ourselves, because the script runs more than once."""
    if name is None:
        return None
    if name == "-":
        content = sys.stdin.buffer.read()
        file = home / "stdin" / f"{os.getpid()}-{os.urandom(4).hex()}"
        write_atomic(file, content, mode=0o600)
        return str(file)
    if not os.path.isfile(name):
        raise BadArguments(f"--stdin {name}: there is no such file", "give a file, or - for our own standard input")
    return os.path.abspath(name)
