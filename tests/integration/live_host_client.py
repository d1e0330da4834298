"""The parent's side of a live host, small enough for tests: a child process over a socket pair, and a plain run to compare with."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120.0


def environment(**extra: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **extra}


@dataclass
class Capture:
    result: dict[str, Any]
    stdout: str
    stderr: str
    events: list[dict[str, Any]]

    @property
    def end(self) -> dict[str, Any]:
        return self.result["end"]

    def drivers(self) -> list[tuple[str, int, str | None]]:
        return [(item["method"], item["count"], (item["refusal"] or {}).get("code")) for item in self.result["drivers"]]

    def notes(self) -> set[str]:
        return {item["code"] for item in self.result["notes"]}


class LiveHost:
    """`with LiveHost(script, …) as host: host.capture()`; the child is gone afterwards."""

    def __init__(self, script: Path, *arguments: str, stdin: str = "", folder: Path, time_limit_s: float = 60.0, **extra: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "replay.log"
        (folder / "stdin").write_text(stdin)
        spec = {
            "script": str(script),
            "arguments": list(arguments),
            "working_directory": str(script.parent),
            "stdout": str(folder / "stdout"),
            "stderr": str(folder / "stderr"),
            "stdin": str(folder / "stdin"),
            "replay_log": str(self.log),
            "scratch": str(folder),
            "time_limit_s": time_limit_s,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        ours, theirs = socket.socketpair()
        ours.settimeout(TIMEOUT_S)
        own = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "LLM4LLM_CHANNEL_FD": str(theirs.fileno()), "LLM4LLM_CHANNEL_NONCE": "n"}
        with (folder / "host.log").open("w") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "llm4llm.harness.host", str(folder / "spec.json")],
                env={**environment(**extra), **own},
                pass_fds=(theirs.fileno(),),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        theirs.close()
        self._socket = ours
        self._lines = ours.makefile("r")
        self._id = 0

    def request(self, op: str, payload: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(last message, events before it)"""
        self._id += 1
        self._socket.sendall(json.dumps({"id": self._id, "op": op, "payload": payload or {}}).encode() + b"\n")
        events: list[dict[str, Any]] = []
        for line in self._lines:
            message = json.loads(line)
            assert message["nonce"] == "n"
            if "event" not in message:
                return message, events
            events.append(message["event"])
        raise AssertionError(f"the host died: {(self.folder / 'host.log').read_text()[-2000:]}")

    def capture(self) -> Capture:
        message, events = self.request("capture")
        assert "ok" in message, message
        return Capture(message["ok"], (self.folder / "stdout").read_text(), (self.folder / "stderr").read_text(), events)

    def __enter__(self) -> "LiveHost":
        return self

    def __exit__(self, *exc: object) -> None:
        # half closed: no more requests. Closed, it would take us for dead and stand still until somebody ends it
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        try:
            self.exit_code = self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise
        finally:
            self._lines.close()
            self._socket.close()


@dataclass
class Plain:
    exit_code: int
    stdout: str
    stderr: str
    command: list[str] = field(default_factory=list)


def plain(script: Path, *arguments: str, stdin: str = "", **extra: str) -> Plain:
    """The same script without us."""
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, cwd=script.parent, env=environment(**extra), timeout=TIMEOUT_S, check=False
    )
    return Plain(done.returncode, done.stdout, done.stderr, command)
