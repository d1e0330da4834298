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


class ScriptTooHeavy(UserError):
    """A file that may be Python, but can't be checked at a reasonable cost."""

    code = "script_too_heavy"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} can't be checked ({why})", "move large tables into files of their own beside the script")
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


class BadCorpus(UserError):
    code = "bad_corpus"

    def __init__(self, path: str, why: str) -> None:
        fix = "a corpus is a folder with workload.py, labels.json and candidates/NAME.py; see docs/judge.md"
        super().__init__(f"{path} is not a usable corpus ({why})", fix)
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


class NotAuthenticated(UserError):
    """No API key, an unknown one or a revoked one; which of them is not said."""

    code = "not_authenticated"

    def __init__(self) -> None:
        fix = "set LLM4LLM_API_KEY for llm4llm and its client, or send it as: Authorization: Bearer KEY"
        super().__init__("this needs a valid API key", fix)


class NotPermitted(UserError):
    code = "not_permitted"

    def __init__(self, scope: str) -> None:
        super().__init__(f"the API key lacks the scope {scope!r}", "use a key that has it; llm4llm keys list shows scopes")
        self.scope = scope


class CrossOrigin(UserError):
    """A web page talks to a server without keys on its reader's machine."""

    code = "cross_origin"

    def __init__(self, what: str) -> None:
        super().__init__(what, "without API keys only programs on this machine are served; start the server with --require-keys")


class TooLarge(UserError):
    code = "too_large"


class BadUpload(UserError):
    """A body that is not what its content type says, or lacks a part."""

    code = "bad_upload"


class BadFileName(UserError):
    code = "bad_file_name"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name[:200]!r} can't be the name of an uploaded file ({why})", "give a relative path like model/net.py")
        self.name = name


class BadArchive(UserError):
    code = "bad_archive"

    def __init__(self, why: str) -> None:
        super().__init__(f"the archive can't be used ({why})", "give one plain zip of the files that the script needs")


class EnvironmentNotAllowed(UserError):
    code = "environment_not_allowed"

    def __init__(self, name: str) -> None:
        what = f"the variable {name[:200]!r} can't be given to an uploaded script"
        super().__init__(what, "leave it out; the operator may allow more names with LLM4LLM_ALLOWED_ENVIRONMENT")
        self.name = name


class NetworkNotAllowed(UserError):
    code = "network_not_allowed"

    def __init__(self) -> None:
        super().__init__("scripts get no network here", "leave network out; the operator may allow it with LLM4LLM_ALLOW_NETWORK=true")


class BudgetTooLarge(UserError):
    code = "budget_too_large"

    def __init__(self, seconds: float, ceiling: float) -> None:
        fix = f"ask for less: --budget {ceiling:g}s, over HTTP budget={ceiling:g}s"
        super().__init__(f"a budget of {seconds:g} s is above the ceiling of this key ({ceiling:g} s)", fix)


class TooManyJobs(UserError):
    code = "too_many_jobs"

    def __init__(self, limit: int) -> None:
        super().__init__(f"this key has all the jobs that it may have at once ({limit})", "wait for one to end or cancel one")


class RateLimited(UserError):
    code = "rate_limited"

    def __init__(self, retry_after_s: float, what: str = "too many requests with this key") -> None:
        super().__init__(what, f"try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class IdempotencyConflict(UserError):
    code = "idempotency_conflict"

    def __init__(self, key: str) -> None:
        super().__init__(f"the Idempotency-Key {key[:100]!r} was used with another request", "use a new key for a new request")


class NoBundle(UserError):
    """`why` is the job's own reason, or that it has not ended yet."""

    code = "no_bundle"

    def __init__(self, job: str, why: str) -> None:
        fix = "wait for its end" if why.startswith("it has not ended") else "see the report for what was tried"
        super().__init__(f"job {job} has no bundle ({why})", fix)


class JobActive(UserError):
    code = "job_active"

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job} has not ended", "cancel it first, and wait until it has ended")


class UnknownKey(UserError):
    code = "unknown_key"

    def __init__(self, key: str) -> None:
        super().__init__(f"there is no API key {key}", "list them with: llm4llm keys list")


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
