"""Whether a file can be handed in as a script at all, before anything of it runs."""

import json
import signal
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

from llm4llm.errors import BadInterpreter, ScriptEmpty, ScriptNotFound, ScriptNotPython, ScriptTooHeavy, ScriptUnreadable

MAX_BYTES = 1 << 20  # far above any script that a person wrote
_TIME_LIMIT_S = 60.0
_PROCESSOR_S = 10
_MEMORY_BYTES = 1 << 30  # addresses; the interpreter alone takes less than a tenth of it
_AT_ONCE = threading.BoundedSemaphore(2)  # so that uploads can't take all of the machine
# Runs in the job's interpreter, whose grammar decides. Only compiles: nothing of the script is executed. Isolated (-I), so that no module
# of the script's folder stands in for the standard library. A tree of the script is never made: it takes a thousand times its size.
_PROBE = """
import io, json, resource, sys, tokenize, warnings
most = int(sys.argv[2])
for kind, limit in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, int(sys.argv[3])), (resource.RLIMIT_CORE, 0)):
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
warnings.simplefilter("ignore")
content = sys.stdin.buffer.read()
quiet = {tokenize.ENCODING, tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}
try:
    compile(content, sys.argv[1], "exec", dont_inherit=True)
    answer = {"empty": all(one.type in quiet for one in tokenize.tokenize(io.BytesIO(content).readline))}
except (SyntaxError, tokenize.TokenError) as error:
    answer = {"line": getattr(error, "lineno", None) or None, "message": str(getattr(error, "msg", error))[:1000]}
except ValueError as error:
    answer = {"line": None, "message": str(error)[:1000]}
except RecursionError:
    answer = {"line": None, "message": "it is nested too deeply to be compiled"}
except MemoryError:
    # the parser says the same of its own stack: then few addresses were ever in use
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmPeak"))
    if peak * 1024 > most // 2:
        answer = {"heavy": True}
    else:
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
    """ScriptEmpty, ScriptUnreadable, ScriptNotPython or ScriptTooHeavy for content that `python` can't run; else BadInterpreter."""
    if not content.strip():
        raise ScriptEmpty(path)
    answer = _probed(path, content, python)
    if tuple(answer["version"]) < _OLDEST:
        raise BadInterpreter(python, "it is Python " + ".".join(map(str, answer["version"])))
    if answer.get("heavy"):
        raise ScriptTooHeavy(path, f"compiling it takes more than {_MEMORY_BYTES >> 20} MiB of memory")
    if answer.get("empty"):
        raise ScriptEmpty(path)
    if "message" in answer:
        if _is_text(content):
            raise ScriptNotPython(path, answer["line"], answer["message"])
        raise ScriptUnreadable(path, f"it is not UTF-8 text: {answer['message']}")


def _probed(path: str, content: bytes, python: str) -> dict[str, Any]:
    command = [python, "-I", "-c", _PROBE, path, str(_MEMORY_BYTES), str(_PROCESSOR_S)]
    try:
        with _AT_ONCE:
            done = subprocess.run(command, input=content, capture_output=True, timeout=_TIME_LIMIT_S, check=False)
    except (OSError, ValueError) as error:
        raise BadInterpreter(python, _why(error)) from error
    except subprocess.TimeoutExpired as error:
        raise BadInterpreter(python, f"it did not answer within {_TIME_LIMIT_S:.0f} s") from error
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ScriptTooHeavy(path, f"compiling it takes more than {_PROCESSOR_S} s of a processor, or more memory than there is")
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
