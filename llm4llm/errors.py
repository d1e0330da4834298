"""One exception tree: what happened, what to do, and whether trying again can help. No HTTP.

An expected end of the user's script or of a child is a value (a status, a `Failed`), never one of these.
"""

from typing import ClassVar


class Llm4llmError(Exception):
    """Base of every error that we raise on purpose.

    `what` says what happened, `fix` what a person can do about it; `code` is stable and for programs.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}: {self.fix}" if self.fix else self.what


class UserError(Llm4llmError):
    """The request can't be served as it is; its author can change that."""

    code = "unusable_input"


class ScriptNotFound(UserError):
    code = "script_not_found"

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no file {path}", "check the path of the script")
        self.path = path


class ScriptUnreadable(UserError):
    code = "script_unreadable"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} can't be read ({why})", "give a readable UTF-8 Python file")
        self.path = path


class ScriptNotPython(UserError):
    """The file does not parse; `line` counts from 1 and is None where the interpreter names none."""

    code = "script_not_python"

    def __init__(self, file: str, line: int | None, message: str) -> None:
        place = file if line is None else f"{file}, line {line}"
        super().__init__(f"the script is not valid Python ({place}: {message})", "correct the file; nothing was run")
        self.file = file
        self.line = line
        self.message = message


class ScriptEmpty(UserError):
    code = "script_empty"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} holds no code", "give a script that loads a model and calls it")
        self.path = path


class BadArguments(UserError):
    """An option or value that means nothing here."""

    code = "bad_arguments"


class BadInterpreter(UserError):
    code = "bad_interpreter"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} can't run the script ({why})", "point --python at a Python 3.11+ interpreter that has torch")
        self.path = path


class BadTaskFolder(UserError):
    code = "bad_task_folder"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is not a usable task folder ({why})", "write one with: llm4llm tasks SCRIPT.py --out DIR")
        self.path = path


class BadCandidate(UserError):
    code = "bad_candidate"

    def __init__(self, path: str, why: str) -> None:
        fix = "give one UTF-8 Python file that defines forward(module, state, ...)"
        super().__init__(f"{path} is not a usable candidate file ({why})", fix)
        self.path = path


class BadBundle(UserError):
    code = "bad_bundle"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is not a usable bundle ({why})", "give the bundle.zip that llm4llm optimize wrote, unchanged")
        self.path = path


class UnknownJob(UserError):
    code = "unknown_job"

    def __init__(self, job: str) -> None:
        super().__init__(f"there is no stored job {job}", "list the stored ones with: llm4llm jobs")
        self.job = job


class JobNotResumable(UserError):
    code = "job_not_resumable"

    def __init__(self, job: str, why: str) -> None:
        super().__init__(f"job {job} can't be continued ({why})", "submit it again without --resume")
        self.job = job


class UnknownTarget(UserError):
    code = "unknown_target"

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"there is no target profile {name!r}", f"use auto or one of: {', '.join(known)}")
        self.name = name


class UnknownAgent(UserError):
    code = "unknown_agent"

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(f"there is no agent {name!r}", f"use one of: {', '.join(known)}")
        self.name = name


class BadSettings(UserError):
    """A setting from the environment or the settings file that can't be used."""

    code = "bad_settings"


class StageError(Llm4llmError):
    """A stage could not reach a result; the job ends as failed with this code and text."""

    code = "stage_failed"


class JudgeTimeout(StageError):
    """Says nothing about the candidate, only that the time was too short for a verdict."""

    code = "timeout"

    def __init__(self, reason: str) -> None:
        super().__init__(f"no verdict within the time limit: {reason}", "give the job a larger --budget")


class ProviderError(Llm4llmError):
    """A model provider refused or did not answer."""

    code = "provider_failed"
    retryable = True


class InfraError(Llm4llmError):
    """The machine let us down: disk, database, processes. Nobody's input is to blame."""

    code = "infrastructure"
    retryable = True


class AssetsMissing(InfraError):
    """A data folder that ships with the package is not there."""

    code = "assets_missing"
    retryable = False


class StoreUnavailable(InfraError):
    code = "store_unavailable"


class DiskFull(InfraError):
    code = "disk_full"


class NoLongerOurs(InfraError):
    """The process may not write about the job any more. Nothing was stored; whoever holds the job decides how it goes on."""

    code = "no_longer_ours"


class LeaseLost(NoLongerOurs):
    code = "lease_lost"

    def __init__(self, job: str) -> None:
        super().__init__(f"another process has taken over job {job}", "see how it goes on with: llm4llm status JOB")


class DeviceLost(NoLongerOurs):
    code = "device_lost"

    def __init__(self, device: str) -> None:
        super().__init__(f"{device} was given to another process while something was timed on it", "the stage has to be repeated")


class HandedBack(NoLongerOurs):
    code = "handed_back"

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job} was handed back before its end", "another worker continues it")
