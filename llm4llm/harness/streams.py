"""The process's own stdin, stdout and stderr, by file descriptor: what subprocesses and C code print is caught as well."""

import contextlib
import ctypes
import gc
import io
import os
import sys


def connect(stdin: str | None, stdout: str, stderr: str, *, emptied: bool) -> None:
    """Point descriptors 0, 1 and 2 at files. Python's stream objects stay as they are and go there; streams that were closed are new.

    Output is appended, so that one file may serve for both outputs; with `emptied` files lose what they held before.
    """
    flush()
    for path in (stdout, stderr) if emptied else ():
        with contextlib.suppress(OSError):  # devices
            os.truncate(path, 0)
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, path, flags in ((0, stdin or os.devnull, os.O_RDONLY), (1, stdout, output), (2, stderr, output)):
        fd = os.open(path, flags, 0o644)
        if fd != number:
            os.dup2(fd, number)
            os.close(fd)
        os.set_inheritable(number, True)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(getattr(sys, name), "closed", True):
            setattr(sys, name, open(number, "w", closefd=False, errors="backslashreplace"))  # noqa: SIM115


def flush() -> None:
    """Write out what Python's and C's standard streams hold."""
    for stream in (sys.stdout, sys.__stdout__, sys.stderr, sys.__stderr__):
        # None without a descriptor; closed or replaced by anything at all by a script
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    ctypes.CDLL(None).fflush(None)


def flush_files() -> None:
    """Write out every file that is still open for writing, as the end of a plain run would."""
    for item in gc.get_objects():
        # by type: isinstance would ask proxies for their __class__, and some of them warn
        if issubclass(type(item), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(Exception):
                item.flush()
