"""Starting children: staged harness, given environment, own session, limits, and a guardian for the day that we are killed."""

import contextlib
import os
import resource
import stat
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from llm4llm.errors import BadInterpreter, InfraError
from llm4llm.kit import kill_group
from llm4llm.sandbox.channel import ParentChannel
from llm4llm.sandbox.child import Child
from llm4llm.sandbox.entry import Entry, NotStarted
from llm4llm.sandbox.foreground import run_in_foreground
from llm4llm.sandbox.guardian import Guardian
from llm4llm.sandbox.isolation import Isolation, isolation
from llm4llm.sandbox.spec import ChildSpec, Files, Limits
from llm4llm.sandbox.staging import stage_harness

CHANNEL_FD_VARIABLE = "LLM4LLM_CHANNEL_FD"
CHANNEL_NONCE_VARIABLE = "LLM4LLM_CHANNEL_NONCE"
PARENT_VARIABLE = "LLM4LLM_PARENT"
ORIGINAL_PREFIX = "LLM4LLM_ORIGINAL_"
_EVERYTHING = Files(hidden=(), writable=(Path("/"),))


class Sandbox:
    """Starts children for one home folder; close it to be sure that none is left.

    `hidden` is what confined children never see: the home, and what else is kept outside of it.
    """

    def __init__(self, home: Path, also_hidden: tuple[Path, ...] = ()) -> None:
        self.home = home
        self.spare = _spare()
        self.hidden = (home, self.spare, *also_hidden)
        self._guardian = Guardian()
        self._lock = threading.Lock()
        self._living: dict[int, Child] = {}
        self._ended = False

    def start(self, spec: ChildSpec) -> Child:
        """A running child in a session of its own. BadInterpreter if its Python can't be started; later deaths are values.

        InfraError after `end_all`.
        """
        with contextlib.ExitStack() as undo:
            channel = ParentChannel() if spec.channel else None
            if channel is not None:
                undo.callback(channel.close)
            entry = _entry(self._order(spec, channel))
            undo.callback(entry.close)
            process, first = self._spawn(spec, channel, entry)
            undo.pop_all()
        if channel is not None:
            channel.started()
        child = Child(process, channel, spec.limits, self._forget, entry, first)
        with self._lock:
            self._living[child.pid] = child
            ended = self._ended
        if ended:
            child.kill()
            raise InfraError("no process may be started any more", "")
        return child

    def end_all(self) -> None:
        """End every child and start none from now on. May be called by any thread: whoever waits for a child gets its death as a value."""
        with self._lock:
            self._ended = True
            left = list(self._living.values())
        for child in left:
            child.strike()

    def execute(self, spec: ChildSpec) -> int:
        """Run a child on our own stdin, stdout and stderr and pass on the signals that we get; its exit code, negative for signals."""
        if self._confined(spec):
            return self._execute_confined(spec)
        command = [spec.python, "-m", spec.module, *spec.arguments]
        try:
            process = subprocess.Popen(command, env=self._environment(spec, None), cwd=spec.working_directory, start_new_session=True)
        except OSError as error:
            raise _not_started(spec, error) from error
        self._guardian.watch(process.pid)
        _limit(process.pid, spec.limits)
        try:
            return run_in_foreground(process, spec.limits.wall_s)
        finally:
            self._guardian.release(process.pid)

    def level(self) -> str:
        """What children can be cut off from here: `full`, `network-off`, `files-only` or `limits-only`, see Isolation."""
        return isolation().level

    def facts(self) -> Isolation:
        """How children are cut off, or why they can't be."""
        return isolation()

    def close(self) -> None:
        """Kill every child that is still there, and end the guardian."""
        with self._lock:
            left = list(self._living.values())
        for child in left:
            child.kill()
        self._guardian.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _execute_confined(self, spec: ChildSpec) -> int:
        entry = _entry(self._order(spec, None))
        try:
            process = self._launched(spec, entry, None, terminal=True)
            try:
                self._answered(spec, entry, process)
                return run_in_foreground(process, spec.limits.wall_s)
            finally:
                self._guardian.release(process.pid)
        finally:
            entry.close()

    def _spawn(self, spec: ChildSpec, channel: ParentChannel | None, entry: Entry) -> tuple[subprocess.Popen[bytes], int]:
        """The head of the family, and the child's own number."""
        self._guardian.ready()  # before the child is there: we may be killed at any moment
        process = self._launched(spec, entry, channel, terminal=False)
        try:
            return process, self._answered(spec, entry, process)
        except BaseException:
            assert process.stderr is not None
            process.stderr.close()
            self._guardian.release(process.pid)
            raise

    def _launched(self, spec: ChildSpec, entry: Entry, channel: ParentChannel | None, terminal: bool) -> subprocess.Popen[bytes]:
        """Until the child is confined nothing of its environment or folder counts: both name code that would be run."""
        prefix = () if spec.limits.network else isolation().prefix
        try:
            process = subprocess.Popen(
                [*prefix, *entry.command],
                # one pipe for both streams: their order is kept, and nothing that a child prints can fill a disk
                stdin=None if terminal else subprocess.DEVNULL,
                stdout=None if terminal else subprocess.PIPE,
                stderr=None if terminal else subprocess.STDOUT,
                env={PARENT_VARIABLE: f"{os.getpid()}.{self._guardian.token}"},
                cwd="/",
                pass_fds=entry.fds if channel is None else (*entry.fds, channel.child_fd),
                start_new_session=True,
            )
        except OSError as error:
            raise _no_process(error) from error
        self._guardian.watch(process.pid)
        process.stderr, process.stdout = process.stdout, None
        return process

    def _answered(self, spec: ChildSpec, entry: Entry, process: subprocess.Popen[bytes]) -> int:
        """The number of the child itself, which has become its program."""
        try:
            first = entry.started()
        except NotStarted as failed:
            kill_group(process.pid)
            process.wait()
            raise _fault(spec, failed) from failed
        except BaseException:
            kill_group(process.pid)
            process.wait()
            raise
        return process.pid if first is None else first

    def _order(self, spec: ChildSpec, channel: ParentChannel | None) -> dict[str, Any]:
        """What the launcher has to know, see launcher/enter.py."""
        return {
            "command": [spec.python, "-m", spec.module, *spec.arguments],
            "environment": self._environment(spec, channel),
            "folder": os.path.abspath(spec.working_directory),
            "file_bytes": spec.limits.file_bytes,
            "files": self._files(spec),
            "calls": self._confined(spec) and isolation().calls,
        }

    def _confined(self, spec: ChildSpec) -> bool:
        return spec.files is not None or not spec.limits.network

    def _files(self, spec: ChildSpec) -> dict[str, Any] | None:
        """The order for Landlock; None where it has nothing to do, or does not exist."""
        here, limits = isolation(), spec.limits
        if not here.landlock or (spec.files is None and (limits.network or here.prefix)):
            return None
        files = spec.files or _EVERYTHING
        return {
            "hidden": [os.path.abspath(path) for path in files.hidden],
            "visible": [os.path.abspath(path) for path in (*files.visible, stage_harness(self.home))],
            "writable": [os.path.abspath(path) for path in files.writable],
            "pinned": {os.path.abspath(path): pin for path, pin in files.pinned.items()},
            "network": limits.network or bool(here.prefix),
        }

    def _environment(self, spec: ChildSpec, channel: ParentChannel | None) -> dict[str, str]:
        environment = dict(spec.environment)
        staged = os.path.abspath(stage_harness(self.home))
        for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
            if name in environment:
                environment[ORIGINAL_PREFIX + name] = environment[name]
        environment["PYTHONPATH"] = os.pathsep.join([staged, *filter(None, [environment.get("PYTHONPATH")])])
        environment["PYTHONSAFEPATH"] = "1"
        if channel is not None:
            environment[CHANNEL_FD_VARIABLE] = str(channel.child_fd)
            environment[CHANNEL_NONCE_VARIABLE] = channel.nonce
        return environment

    def _forget(self, pid: int) -> None:
        self._guardian.release(pid)
        with self._lock:
            self._living.pop(pid, None)


def _spare() -> Path:
    """One folder for all judgements of this user, so that a confined child can be kept out of the others'."""
    folder = Path(tempfile.gettempdir()) / f"l4-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise InfraError(
            f"{folder} belongs to somebody else, or others can look into it", "remove it, or set TMPDIR to a folder of your own"
        )
    return folder


def _limit(pid: int, limits: Limits) -> None:
    """Kernel limits, set from outside before the child has imported anything: no code of ours runs between fork and exec."""
    try:
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        if limits.file_bytes is not None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    except ProcessLookupError:
        return


def _entry(order: dict[str, Any]) -> Entry:
    try:
        return Entry(order)
    except OSError as error:
        raise _no_process(error) from error


def _fault(spec: ChildSpec, failed: NotStarted) -> BadInterpreter | InfraError:
    if failed.fault != "folder":
        return _not_started(spec, failed.error) if failed.fault else _no_process(failed.error)
    if isinstance(failed.error, (FileNotFoundError, NotADirectoryError)):
        return _gone(spec)
    return InfraError(f"the folder {spec.working_directory} can't be entered ({failed.error.strerror})", "check its rights")


def _not_started(spec: ChildSpec, error: OSError) -> BadInterpreter | InfraError:
    if not spec.working_directory.is_dir():
        return _gone(spec)
    if isinstance(error, (FileNotFoundError, PermissionError, NotADirectoryError)):
        return BadInterpreter(spec.python, error.strerror or str(error))
    return _no_process(error)


def _gone(spec: ChildSpec) -> InfraError:
    return InfraError(f"the folder {spec.working_directory} is gone", "make it again or start from another folder")


def _no_process(error: OSError) -> InfraError:
    return InfraError(f"no process could be started ({error.strerror})", "free memory or end other processes, then try again")
