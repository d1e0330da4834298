"""What runs first in a confined child: give up access to files, then become the child's program.

Started with -I -S, before anything of the child's environment counts: enter.py FACTS PROGRAM ARGUMENTS..., FACTS as JSON.
"""

import json
import os
import sys
from pathlib import Path

from llm4llm.sandbox.landlock import NotConfined, restrict

EXIT_NOT_CONFINED = 125


def main() -> None:
    """Never returns: the program takes over, or the exit code says that it could not be confined."""
    facts, command = json.loads(sys.argv[2]), sys.argv[3:]
    try:
        hidden, visible, writable = ([Path(path) for path in facts[name]] for name in ("hidden", "visible", "writable"))
        restrict(hidden, visible, writable, facts["network"], facts["pinned"])
    except NotConfined as error:
        sys.stderr.write(f"this process can't be confined: {error}\n")
        os._exit(EXIT_NOT_CONFINED)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{command[0]} can't be started: {error.strerror}\n")
        os._exit(126)
