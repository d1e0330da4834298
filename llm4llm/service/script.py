"""Whether a file can be handed in as a script at all, before anything of it runs."""

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

from llm4llm.errors import BadInterpreter, ScriptEmpty, ScriptNotFound, ScriptNotPython, ScriptUnreadable

MAX_BYTES = 16 << 20  # far above any script that a person wrote
_TIME_LIMIT_S = 60.0
# Runs in the job's interpreter, whose grammar decides. Only parses: nothing of the script is executed. Isolated (-I), so that no module of
# the script's folder stands in for the standard library.
_PROBE = """
import ast, json, sys, tokenize, warnings
warnings.simplefilter("ignore")
content = sys.stdin.buffer.read()
try:
    tree = ast.parse(content, filename=sys.argv[1])
    compile(content, sys.argv[1], "exec", dont_inherit=True)
    answer = {"empty": not tree.body}
except SyntaxError as error:
    answer = {"line": error.lineno or None, "message": error.msg}
except ValueError as error:
    answer = {"line": None, "message": str(error)}
except (RecursionError, MemoryError):
    answer = {"line": None, "message": "it is nested too deeply to be compiled"}
answer["version"] = list(sys.version_info[:2])
print(json.dumps(answer))
"""
_OLDEST = (3, 11)


def read_script(path: str) -> bytes:
    """The file's content; ScriptNotFound or ScriptUnreadable if it is no regular, readable file of a script's size."""
    file = Path(path)
    try:
        facts = file.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ScriptNotFound(path) from error
    except (OSError, ValueError) as error:
        raise ScriptUnreadable(path, _why(error)) from error
    if stat.S_ISDIR(facts.st_mode):
        raise ScriptUnreadable(path, "it is a folder")
    if not stat.S_ISREG(facts.st_mode):
        raise ScriptUnreadable(path, "it is not a regular file")
    if facts.st_size > MAX_BYTES:
        raise ScriptUnreadable(path, f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        return file.read_bytes()
    except OSError as error:
        raise ScriptUnreadable(path, _why(error)) from error


def check_script(path: str, content: bytes, python: str) -> None:
    """ScriptEmpty, ScriptUnreadable or ScriptNotPython for content that `python` can't run; BadInterpreter if that is at fault."""
    if not content.strip():
        raise ScriptEmpty(path)
    answer = _probed(path, content, python)
    if tuple(answer["version"]) < _OLDEST:
        raise BadInterpreter(python, "it is Python " + ".".join(map(str, answer["version"])))
    if answer.get("empty"):
        raise ScriptEmpty(path)
    if "message" in answer:
        if _is_text(content):
            raise ScriptNotPython(path, answer["line"], answer["message"])
        raise ScriptUnreadable(path, f"it is not UTF-8 text: {answer['message']}")


def _probed(path: str, content: bytes, python: str) -> dict[str, Any]:
    command = [python, "-I", "-c", _PROBE, path]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=_TIME_LIMIT_S, check=False)
    except (OSError, ValueError) as error:
        raise BadInterpreter(python, _why(error)) from error
    except subprocess.TimeoutExpired as error:
        raise BadInterpreter(python, f"it did not answer within {_TIME_LIMIT_S:.0f} s") from error
    if done.returncode < 0:
        # CPython's own parser can overflow its stack on adversarial nesting
        raise ScriptNotPython(path, None, "the interpreter crashed while it compiled the file")
    try:
        answer = json.loads(done.stdout.decode().strip().splitlines()[-1])
        if not isinstance(answer, dict):
            raise TypeError
    except (ValueError, IndexError, TypeError) as error:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise BadInterpreter(python, lines[-1] if lines else f"exit code {done.returncode}") from error
    return answer


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
