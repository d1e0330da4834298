"""Programs of ours that run before, beside or after a child, with nothing of anybody's environment."""

import sys
from pathlib import Path

import llm4llm

_ROOT = str(Path(llm4llm.__file__).resolve().parent.parent)


def bare_python(module: str) -> list[str]:
    """The command that runs a module's `main`; arguments follow, from sys.argv[2] on.

    -I: no variables and no folder of the user's; -S: no site-packages, since the standard library is enough.
    """
    start = f"import sys; sys.path.insert(0, sys.argv[1]); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", start, _ROOT]
