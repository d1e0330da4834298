"""What runs first in a child's process: it splits into the head of the family, which stays, and the child, which becomes its program.

Started with -I -S, in / and with nothing of the child's environment: a loader that obeys the child's variables, or that finds files in
the child's folder, would run the child's code before it is confined. All that it has to know comes as JSON in a file without a name:
`command`, `environment` and `folder` of the program, `file_bytes` (or null), `files` for Landlock (or null) and `calls` (to filter them).

    enter.py ORDER STATUS LINE

ORDER, STATUS and LINE are file descriptors. STATUS gets the child's number, then what kept it from becoming its program, if anything did;
LINE ends when the child is not wanted any more.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from llm4llm.launcher import family
from llm4llm.launcher.calls import SET_DEATH_SIGNAL, NotConfined, give_up_privileges, libc
from llm4llm.launcher.landlock import restrict
from llm4llm.launcher.seccomp import refuse_calls

EXIT_NOT_CONFINED, EXIT_NOT_STARTED = 125, 126
_PARENT_VARIABLE = "LLM4LLM_PARENT"  # see llm4llm.sandbox.start; the child's parent is the head of its family


def main() -> None:
    """Never returns."""
    order_fd, status, line = (int(argument) for argument in sys.argv[2:5])
    with open(order_fd, "rb") as file:
        order = json.load(file)
    token = os.environ.get(_PARENT_VARIABLE, "").partition(".")[2]
    if token:
        order["environment"][_PARENT_VARIABLE] = f"{os.getpid()}.{token}"
    head = os.getpid()
    blocked = family.gather()
    child = os.fork()
    if child != 0:
        family.keep(child, line)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.close(line)
    os.set_inheritable(status, False)
    # stopped, not killed, if the head is: whoever ends the family finds all of it through its first member
    libc().prctl(SET_DEATH_SIGNAL, int(signal.SIGSTOP), 0, 0, 0)
    if os.getppid() != head:
        os._exit(1)
    os.write(status, b"%d\n" % os.getpid())
    _become(order, status)


def _become(order: dict[str, Any], status: int) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, which would be inherited
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if (most := order["file_bytes"]) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        _confine(order["files"], order["calls"])
    except NotConfined as error:
        sys.stderr.write(f"this process can't be confined: {error}\n")
        sys.stderr.flush()
        os._exit(EXIT_NOT_CONFINED)
    command = order["command"]
    failed = "folder"
    try:
        os.chdir(order["folder"])
        failed = "program"
        os.execvpe(command[0], command, order["environment"])  # noqa: S606
    except OSError as error:
        os.write(status, f"{failed} {error.errno or 0}\n".encode())
    os._exit(EXIT_NOT_STARTED)


def _confine(files: dict[str, Any] | None, calls: bool) -> None:
    if files is not None or calls:
        give_up_privileges()
    if files is not None:
        hidden, visible, writable = ([Path(path) for path in files[name]] for name in ("hidden", "visible", "writable"))
        restrict(hidden, visible, writable, files["network"], files["pinned"])
    if calls:
        refuse_calls()
