"""What a file of Python says about itself, read without running it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache

MOST_SOURCE_BYTES = 256 << 10  # far above any candidate
_MOST_MEMORY = 1 << 30
_MOST_CPU_S = 10
_TIME_LIMIT_S = 60.0
# In a process of its own: nesting can exhaust the parser's stack, and 200 KB of `import a.b.b.b...` take it 10 GB.
_READ = f"""
import ast, json, resource, sys, warnings
resource.setrlimit(resource.RLIMIT_AS, ({_MOST_MEMORY}, {_MOST_MEMORY}))
resource.setrlimit(resource.RLIMIT_CPU, ({_MOST_CPU_S}, {_MOST_CPU_S}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
warnings.simplefilter("ignore")
tree = ast.parse(sys.stdin.buffer.read())
imports, strings = set(), {{}}
for node in ast.walk(tree):
    if isinstance(node, ast.Import):
        imports.update(alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        imports.add(node.module.partition(".")[0])
for node in tree.body:
    if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Tuple, ast.List, ast.Set)):
        values = [one.value if isinstance(one, ast.Constant) else None for one in node.value.elts]
        if all(isinstance(value, str) for value in values):
            strings.update((name.id, values) for name in node.targets if isinstance(name, ast.Name))
facts = {{"docstring": ast.get_docstring(tree) or "", "imports": sorted(imports), "strings": strings}}
print(json.dumps(facts))
"""


class SourceRefused(Exception):
    """Text that is no Python, is too long, or takes too much to be read; the message says which."""


@dataclass(frozen=True)
class Source:
    """What a file says at its top."""

    docstring: str  # empty if there is none
    imports: frozenset[str]  # packages that are imported anywhere in it
    strings: dict[str, tuple[str, ...]]  # constants that list strings, such as PHASES = ("decode",)


@lru_cache(maxsize=64)
def read_source(content: bytes) -> Source:
    """Facts of a module that somebody else wrote. Raises SourceRefused, whatever the text is like."""
    if len(content) > MOST_SOURCE_BYTES:
        raise SourceRefused(f"it is longer than {MOST_SOURCE_BYTES >> 10} KiB")
    try:
        command = [sys.executable, "-I", "-S", "-c", _READ]
        done = subprocess.run(command, input=content, capture_output=True, timeout=_TIME_LIMIT_S, check=True)
        facts = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines() if isinstance(error, subprocess.CalledProcessError) else []
        raise SourceRefused(f"it can't be read as Python ({lines[-1][:200] if lines else type(error).__name__})") from error
    strings = {name: tuple(map(_storable, values)) for name, values in facts["strings"].items()}
    return Source(_storable(facts["docstring"]), frozenset(facts["imports"]), strings)


def _storable(text: str) -> str:
    """Without what no database takes: halves of surrogate pairs, and zeros."""
    return text.encode(errors="replace").decode().replace("\0", "")
