"""From an upload to a stored job: everything is checked before anything is stored."""

import hashlib
import random
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

from llm4llm.errors import BudgetTooLarge, EnvironmentNotAllowed, NetworkNotAllowed, TooLarge, TooManyJobs
from llm4llm.kit import Clock, canonical_json, iso, new_id, sha256_text
from llm4llm.sandbox import may_be_given
from llm4llm.schema.apikey import Caller
from llm4llm.schema.job import Budget, Job, JobStatus, Request, UploadedFile
from llm4llm.schema.submission import Options
from llm4llm.service.archive import Part, readable, unpacked
from llm4llm.service.jobs import check_names
from llm4llm.service.names import check_together, checked_name
from llm4llm.service.script import MAX_BYTES, check_script
from llm4llm.settings import Settings
from llm4llm.store import Store
from llm4llm.store.submissions import Once

MAX_FILES = 1000
_BLOCK = 1 << 20
_REMEMBERED = 4096


@dataclass(frozen=True)
class Upload:
    """What was handed in; the files can be read from their start and stay open until the job is stored."""

    script: Part
    options: Options
    files: tuple[Part, ...] = ()
    archive: BinaryIO | None = None
    idempotency_key: str | None = None


class Intake:
    """Takes uploads in. Several threads may use one."""

    def __init__(self, store: Store, settings: Settings, clock: Clock, rng: random.Random) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._lock = threading.Lock()
        self._good_scripts: dict[str, None] = {}  # hashes of scripts that were found to be Python, the oldest first

    def take(self, upload: Upload, caller: Caller) -> tuple[str, bool]:
        """The job's id, and whether it is new: the same Idempotency-Key with the same content names the same job.

        Any UserError says why nothing was stored.
        """
        with ExitStack() as opened:
            parts = list(upload.files)
            if upload.archive is not None:
                parts += opened.enter_context(unpacked(upload.archive, MAX_FILES, self._settings.max_unpacked_bytes))
            parts.sort(key=lambda part: part.path)
            script = Part(checked_name(upload.script.path), upload.script.open)
            self._check_options(upload.options, caller)
            request, content = self._request(script, parts, upload.options)
            once = self._once(upload.idempotency_key, request)
            if (earlier := self._store.submissions.earlier(caller.owner, once)) is not None:
                return earlier, False
            self._check_script(request, content)
            if caller.owner is not None and self._store.submissions.active(caller.owner) >= caller.limits.concurrent_jobs:
                raise TooManyJobs(caller.limits.concurrent_jobs)
            self._store.blobs.put(content)
            self._keep(parts, request.files)
        at = self._clock.now()
        with self._lock:
            job_id = new_id("job", self._clock, self._rng)
        job = Job(id=job_id, request=request, status=JobStatus.QUEUED, created_at=iso(at))
        stored = self._store.submissions.add(job, caller.owner, once, caller.limits.concurrent_jobs)
        return stored, stored == job_id

    def _check_options(self, options: Options, caller: Caller) -> None:
        check_names(options.target, options.agent)
        if options.budget > caller.limits.budget_seconds:
            raise BudgetTooLarge(options.budget, caller.limits.budget_seconds)
        if options.network and not self._settings.allow_network:
            raise NetworkNotAllowed
        for name in options.environment:
            if not (may_be_given(name) or name in self._settings.allowed_environment):
                raise EnvironmentNotAllowed(name)

    def _request(self, script: Part, parts: list[Part], options: Options) -> tuple[Request, bytes]:
        """The request, and the script's content."""
        if len(parts) > MAX_FILES:
            raise TooLarge(f"there are more than {MAX_FILES} files", "leave out what the script does not need")
        paths = [checked_name(part.path) for part in parts]
        check_together([script.path, *paths])
        with readable():
            content = script.open().read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise TooLarge(f"the script is larger than {MAX_BYTES >> 20} MiB", "hand in large data as extra files")
        left = self._settings.max_unpacked_bytes - len(content)
        files = []
        for part, path in zip(parts, paths):
            sha256, size = _measured(part, left)
            left -= size
            files.append(UploadedFile(path=path, sha256=sha256, bytes=size))
        request = Request(
            script=script.path,
            script_sha256=hashlib.sha256(content).hexdigest(),
            arguments=options.args,
            working_directory=".",
            python="",
            environment=dict(sorted(options.environment.items())),
            target=options.target,
            agent=options.agent,
            budget=Budget(seconds=options.budget),
            min_gain=options.min_gain,
            objective=options.objective,
            files=tuple(files),
            network=options.network,
        )
        return request, content

    def _check_script(self, request: Request, content: bytes) -> None:
        """Parsed in a process of its own, once per content: hostile nesting may end that process."""
        if request.script_sha256 in self._good_scripts:
            return
        check_script(request.script, content, sys.executable)
        with self._lock:
            self._good_scripts[request.script_sha256] = None
            while len(self._good_scripts) > _REMEMBERED:
                del self._good_scripts[next(iter(self._good_scripts))]

    def _keep(self, parts: Iterable[Part], files: Iterable[UploadedFile]) -> None:
        for part, file in zip(parts, files):
            with readable():
                stored = self._store.blobs.put_file(part.open())
            assert stored == file.sha256, "an uploaded file changed while it was read"

    def _once(self, key: str | None, request: Request) -> Once | None:
        return None if key is None else Once(key, sha256_text(canonical_json(request.model_dump(mode="json"))))


def _measured(part: Part, left: int) -> tuple[str, int]:
    """Hash and size of a file; TooLarge as soon as it has more than `left` bytes."""
    digest, size = hashlib.sha256(), 0
    for block in _blocks(part):
        size += len(block)
        if size > left:
            raise TooLarge("all files together are too large when unpacked", "leave out what the script does not need")
        digest.update(block)
    return digest.hexdigest(), size


def _blocks(part: Part) -> Iterator[bytes]:
    with readable():
        file = part.open()
        while block := file.read(_BLOCK):
            yield block
