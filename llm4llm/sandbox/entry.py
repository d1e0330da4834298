"""Our end of a start: what the launcher is told, what it answers, and the line that tells it to end the child."""

import errno
import json
import os
import select
from typing import Any

from llm4llm.sandbox.bare import bare_python

_ANSWER_TIMEOUT_S = 60.0


class NotStarted(Exception):
    """The child could not become its program: its `folder` or its `program` is at fault, or, with neither, the launcher."""

    def __init__(self, fault: str, number: int) -> None:
        super().__init__(fault)
        self.fault = fault
        self.error = OSError(number, os.strerror(number))


class Entry:
    """File descriptors of one start; close it after everything else of the child."""

    def __init__(self, order: dict[str, Any]) -> None:
        # a file without a name: neither other users nor other jobs can read it, and it takes any length without a reader
        self._order = os.memfd_create("order")
        self._answer, self._answering = os.pipe()
        self._listening, self._line = os.pipe()
        with open(self._order, "wb", closefd=False) as file:
            file.write(json.dumps(order).encode())
        os.lseek(self._order, 0, os.SEEK_SET)

    @property
    def command(self) -> list[str]:
        return [*bare_python("llm4llm.launcher.enter"), *map(str, self.fds)]

    @property
    def fds(self) -> tuple[int, ...]:
        """What the launcher inherits."""
        return self._order, self._answering, self._listening

    def started(self) -> int | None:
        """The number of the child below the launcher, once it has become its program; None if the launcher ended before. NotStarted."""
        for fd in self.fds:
            os.close(fd)
        self._order = self._answering = self._listening = -1
        answer = b""
        poller = select.poll()
        poller.register(self._answer, select.POLLIN)
        while poller.poll(1000 * _ANSWER_TIMEOUT_S):
            piece = os.read(self._answer, 4096)
            if not piece:
                break
            answer += piece
        else:
            raise NotStarted("", errno.ETIMEDOUT)
        lines = answer.decode().splitlines()
        if len(lines) > 1:
            fault, number = lines[1].split()
            raise NotStarted(fault, int(number))
        return int(lines[0]) if lines else None

    def let_go(self) -> None:
        """Have the launcher end the whole family. Idempotent."""
        line, self._line = self._line, -1
        if line >= 0:
            os.close(line)

    def close(self) -> None:
        self.let_go()
        for fd in (*self.fds, self._answer):
            if fd >= 0:
                os.close(fd)
        self._order = self._answering = self._listening = self._answer = -1
