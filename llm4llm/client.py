"""The service from Python: hand in a script, wait, download."""

import contextlib
import hashlib
import ipaddress
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote, urlsplit

import httpx

from llm4llm.errors import BadArguments, InfraError, ScriptNotFound, UserError

DEFAULT_SERVER = "http://127.0.0.1:8421"
ENDED = frozenset({"succeeded", "failed", "cancelled"})
_WAIT_S = 30.0  # one long poll
_TRIES = 3
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_PATIENCE = 10  # failures in a row
_BLOCK = 1 << 18
_STREAM_SILENCE_S = 60.0  # the server sends a comment every 15 s


class Refused(UserError):
    """The server said no; `problem` is its whole answer, `problem_code` the code that programs may branch on."""

    code = "refused"

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        detail = str(problem.get("detail") or f"the server answered with status {status}")
        super().__init__(detail, str(problem.get("fix") or ""))
        self.status = status
        self.problem = dict(problem)
        self.problem_code = str(problem.get("code", ""))


class NotAuthenticated(Refused):
    code = "client_not_authenticated"


class NotAllowed(Refused):
    code = "client_not_allowed"


class NotFound(Refused):
    code = "client_not_found"


class Conflict(Refused):
    """Nothing to download, a key used twice, or a job that still runs: see `problem_code`."""

    code = "client_conflict"


class Limited(Refused):
    """Too many requests or jobs; `retry_after_s` says when to try again."""

    code = "client_limited"
    retry_after_s: float = 1.0


class ServerFault(InfraError):
    """The server failed, or something else answered in its place."""

    code = "server_fault"


class ServerUnreachable(InfraError):
    code = "server_unreachable"

    def __init__(self, server: str, why: str) -> None:
        fix = "start one with: llm4llm serve; or name one with --server or LLM4LLM_SERVER"
        super().__init__(f"no llm4llm server answers at {server} ({why})", fix)


class DownloadDamaged(InfraError):
    code = "download_damaged"

    def __init__(self, path: Path) -> None:
        super().__init__(f"what arrived at {path} is not what the server has", "download it again")


class Client:
    """A connection to one server, to be closed. Methods return the server's JSON as dictionaries; errors are typed."""

    _REFUSALS: ClassVar[dict[int, type[Refused]]] = {401: NotAuthenticated, 403: NotAllowed, 404: NotFound, 409: Conflict, 429: Limited}

    def __init__(self, server: str | None = None, api_key: str | None = None, timeout_s: float = 30.0) -> None:
        """Server and key default to LLM4LLM_SERVER and LLM4LLM_API_KEY, the server then to one on this machine."""
        self.server = (server or os.environ.get("LLM4LLM_SERVER") or DEFAULT_SERVER).rstrip("/")
        parts = urlsplit(self.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadArguments(f"{self.server!r} is not a server's address", f"write it like {DEFAULT_SERVER}")
        key = api_key or os.environ.get("LLM4LLM_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout_s = timeout_s
        # a proxy of the environment can't reach this machine's own loopback
        self._http = httpx.Client(base_url=self.server, headers=headers, timeout=timeout_s, trust_env=not _is_loopback(parts.hostname))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(
        self,
        script: str | Path,
        args: Sequence[str] = (),
        files: Sequence[str | Path] | Mapping[str, str | Path] = (),
        idempotency_key: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The new job. Files keep their place relative to the script's folder if they lie below it; a mapping names each one's place.

        `options` are those of the API: environment, target, objective, budget, agent, min_gain, network. Repeated by itself if the
        connection breaks: an Idempotency-Key makes that safe.
        """
        script = Path(script)
        named = dict(files) if isinstance(files, Mapping) else {_name_beside(script, Path(file)): file for file in files}
        fields = {"args": json.dumps(list(args)), **{name: _field(value) for name, value in options.items() if value is not None}}
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        for attempt in range(_TRIES):
            with ExitStack() as opened:
                parts = [("script", (script.name, opened.enter_context(_opened(script))))]
                parts += [("files", (name, opened.enter_context(_opened(Path(path))))) for name, path in named.items()]
                try:
                    return dict(self._json("POST", "/v1/jobs", data=fields, files=parts, headers=headers))
                except ServerUnreachable:
                    if attempt == _TRIES - 1:
                        raise
            time.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError("the loop ends by returning or raising")

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self._json("GET", _place(job_id)))

    def jobs(self, status: str | None = None, limit: int = 50) -> Iterator[dict[str, Any]]:
        """Newest first, at most `limit`, fetched page by page."""
        params: dict[str, Any] = {"limit": min(limit, 100)} | ({"status": status} if status else {})
        while limit > 0:
            page = self._json("GET", "/v1/jobs", params=params)
            yield from page["jobs"][:limit]
            limit -= len(page["jobs"])
            if page["next_cursor"] is None:
                return
            params["cursor"] = page["next_cursor"]

    def wait(self, job_id: str, timeout_s: float | None = None) -> dict[str, Any]:
        """The job at its end; TimeoutError if that takes longer."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        etag, job, failures = "", {}, 0
        while True:
            left = _WAIT_S if deadline is None else min(_WAIT_S, deadline - time.monotonic())
            headers = {"If-None-Match": etag} if etag else {}
            params = {"wait": max(0.0, left)} if etag else {}
            try:
                with self._sent("GET", _place(job_id), params=params, headers=headers, timeout=_WAIT_S + self._timeout_s) as answer:
                    if answer.status_code != 304:
                        answer.read()
                        job = dict(_decoded(answer))
                        etag = answer.headers.get("etag", "")
                failures = 0
            except ServerUnreachable as error:
                if not etag:
                    raise
                failures = _patient(failures, error)
            if job["status"] in ENDED:
                return job
            if left <= 0:
                raise TimeoutError(f"job {job_id} has not ended after {timeout_s:g} s")

    def events(self, job_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Everything that happens to the job, as dictionaries with `event`, `id` and `data`, until an `end` that carries the job.

        A broken connection is taken up again after the last event that was seen.
        """
        last, failures, reached = after, 0, False
        while True:
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(last)} if last else {})
            try:
                timeout = httpx.Timeout(self._timeout_s, read=_STREAM_SILENCE_S)
                with self._sent("GET", f"{_place(job_id)}/events", headers=headers, timeout=timeout) as answer:
                    reached = True
                    for event in _server_sent(answer.iter_lines()):
                        failures = 0
                        last = event["id"] or last
                        yield event
                        if event["event"] == "end":
                            return
                time.sleep(_PAUSE_S)  # the server closed the stream, because it is about to end
            except ServerUnreachable as error:
                if not reached:
                    raise
                failures = _patient(failures, error)

    def cancel(self, job_id: str) -> dict[str, Any]:
        return dict(self._json("POST", f"{_place(job_id)}/cancel"))

    def delete(self, job_id: str) -> None:
        with self._sent("DELETE", _place(job_id)):
            pass

    def report(self, job_id: str) -> dict[str, Any]:
        return dict(self._json("GET", f"{_place(job_id)}/report"))

    def hotspots(self, job_id: str) -> list[dict[str, Any]]:
        return list(self._json("GET", f"{_place(job_id)}/hotspots")["hotspots"])

    def candidates(self, job_id: str) -> list[dict[str, Any]]:
        return list(self._json("GET", f"{_place(job_id)}/candidates")["candidates"])

    def logs(self, job_id: str, stream: Literal["events", "stdout", "stderr"] = "events") -> str:
        with self._sent("GET", f"{_place(job_id)}/logs", params={"stream": stream}) as answer:
            return answer.read().decode(errors="replace")

    def targets(self) -> list[dict[str, Any]]:
        return list(self._json("GET", "/v1/targets")["targets"])

    def agents(self) -> list[dict[str, Any]]:
        return list(self._json("GET", "/v1/agents")["agents"])

    def download(self, job_id: str, path: str | Path) -> Path:
        """The bundle at `path`, verified by its sha256. What an interrupted download left beside it is continued.

        Conflict if the job has no bundle, DownloadDamaged if the content is wrong.
        """
        path = Path(path)
        part = path.with_name(f"{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(_TRIES):
            try:
                sha256 = self._fetch(job_id, part)
                break
            except ServerUnreachable:
                if attempt == _TRIES - 1:
                    raise
                time.sleep(_PAUSE_S * 2**attempt)
        with part.open("rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == sha256
        if not whole:
            part.unlink()
            raise DownloadDamaged(path)
        part.replace(path)
        return path

    def _fetch(self, job_id: str, part: Path) -> str:
        """Append what is missing of the bundle to `part`; the sha256 that the whole has to have."""
        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        try:
            with self._sent("GET", f"{_place(job_id)}/bundle", headers=headers) as answer:
                with part.open("ab" if answer.status_code == 206 else "wb") as file:
                    for block in answer.iter_bytes(_BLOCK):
                        file.write(block)
                return str(answer.headers.get("x-checksum-sha256", ""))
        except Refused as refused:
            if refused.status != 416:
                raise
        # nothing is missing, or what lies there is something else: asked for from the start
        part.unlink()
        return self._fetch(job_id, part)

    def _json(self, method: str, place: str, **how: Any) -> Any:
        with self._sent(method, place, **how) as answer:
            answer.read()
            return _decoded(answer)

    @contextmanager
    def _sent(self, method: str, place: str, **how: Any) -> Iterator[httpx.Response]:
        """An open response whose status is good; a typed error otherwise."""
        try:
            with self._http.stream(method, place, **how) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    self._refuse(answer)
                yield answer
        except httpx.TransportError as error:
            raise ServerUnreachable(self.server, str(error) or type(error).__name__) from error
        except httpx.InvalidURL as error:
            raise BadArguments(f"{place!r} can't be asked for ({error})", "check the job's id") from error

    def _refuse(self, answer: httpx.Response) -> None:
        problem: dict[str, Any] = {}
        with contextlib.suppress(ValueError):
            found = answer.json()
            problem = found if isinstance(found, dict) else {}
        if answer.status_code >= 500 or "code" not in problem:
            detail = problem.get("detail") or f"status {answer.status_code}"
            raise ServerFault(f"the server at {self.server} failed ({detail})", str(problem.get("fix") or "look at its log"))
        refused = self._REFUSALS.get(answer.status_code, Refused)(answer.status_code, problem)
        if isinstance(refused, Limited):
            with contextlib.suppress(ValueError):
                refused.retry_after_s = float(answer.headers.get("retry-after", "1"))
        raise refused


def _patient(failures: int, error: ServerUnreachable) -> int:
    """One more failure, after a pause: a server that was there before may be starting again. Raises the error after about a minute."""
    if failures >= _PATIENCE:
        raise error
    time.sleep(min(_LONGEST_PAUSE_S, _PAUSE_S * 2**failures))
    return failures + 1


def _decoded(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise ServerFault(f"{answer.request.url} is not an llm4llm server", "check --server or LLM4LLM_SERVER") from error


def _server_sent(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Events of a stream (HTML standard, 9.2.6); one that was cut off is left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            if name in ("event", "id", "data"):
                value = value.removeprefix(" ")
                fields[name] = f"{fields[name]}\n{value}" if name == "data" and "data" in fields else value
        else:
            if "data" in fields:
                number = fields.get("id", "")
                yield {
                    "event": fields.get("event", "message"),
                    "id": int(number) if number.isdecimal() else None,
                    "data": json.loads(fields["data"]),
                }
            fields = {}


def _place(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"


def _field(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else str(value)


def _name_beside(script: Path, file: Path) -> str:
    """A file's place relative to the script's folder, or its bare name if it lies elsewhere."""
    folder, place = Path(os.path.abspath(script)).parent, Path(os.path.abspath(file))
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else place.name


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        file = path.open("rb")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ScriptNotFound(str(path)) from error
    except OSError as error:
        raise BadArguments(f"{path} can't be read ({error.strerror})", "check its rights") from error
    with file:
        yield file


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
