"""A small process that outlives us by a moment: when we are gone, however we went, it ends our children's groups.

A family has a head that ends it when we are gone (launcher/family.py). The guardian ends those whose head could not, and those that run
in the foreground, which have none. Children ask to be stopped, not killed, when their parent is gone (PR_SET_PDEATHSIG, see
harness/confine.py): a family whose first member stands still is complete when the guardian comes to end it.
"""

import contextlib
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from llm4llm.kit import kill_group, members
from llm4llm.sandbox.bare import bare_python

_LATE_S = (0.0, 0.2, 1.0)
_HEADS_S = 1.0
_POLL_S = 0.02


class Guardian:
    """Our end of it. Started by the first `watch`; ends with us or at `close`."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)  # in the environment of every child, for those that we had no time to name
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._watched: set[int] = set()

    def ready(self) -> None:
        """Start the process now, so that a `watch` takes no time."""
        with self._lock:
            self._say("")

    def watch(self, group: int) -> None:
        """End this group when we are gone."""
        with self._lock:
            self._watched.add(group)
            self._say(f"+{group}\n")

    def release(self, group: int) -> None:
        """The group has ended; its number may be used by others from now on."""
        with self._lock:
            self._watched.discard(group)
            self._say(f"-{group}\n")

    def close(self) -> None:
        """End every watched group and the guardian itself."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None and process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.write(b".")
                    process.stdin.close()
                process.wait()

    def _say(self, line: str) -> None:
        """Dictate a line; a guardian that somebody ended is started anew, and told everything again."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                bare_python("llm4llm.sandbox.guardian"),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={},
                cwd="/",
            )
            line = "".join([f"={self.token}\n", *(f"+{group}\n" for group in self._watched)])
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()


def main() -> None:
    """Keep the list that the parent dictates on stdin; at its end, kill what is on it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    token = ""
    for line in sys.stdin:
        if line[0] == "=":
            token = line[1:].strip()
        elif line[0] == "+":
            groups.add(int(line[1:]))
        elif line[0] == "-":
            groups.discard(int(line[1:]))
        else:
            token = ""  # our parent goes in good order: it has named every child
    deadline = time.monotonic() + _HEADS_S
    while time.monotonic() < deadline and any(map(members, groups)):
        time.sleep(_POLL_S)
    for group in groups:
        kill_group(group)
    for pause_s in _LATE_S if token else ():
        # a child whose number our parent had no time to tell; it may not even have become itself yet
        time.sleep(pause_s)
        for pid in _carrying(token.encode()):
            kill_group(pid)


def _carrying(token: bytes) -> list[int]:
    """Living processes that were started with this token."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if token in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found
