"""What a job found and made: events, hotspots, candidates, report, logs, bundle."""

import base64
import json
import logging
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from llm4llm.api.context import Context, Here, Reader
from llm4llm.api.problems import documented, problem
from llm4llm.api.routes.jobs import COMMON, JobId
from llm4llm.errors import InfraError, NoBundle
from llm4llm.kit import canonical_json
from llm4llm.schema.job import JobStatus
from llm4llm.service.access import visible
from llm4llm.service.output import Stream, event_lines, script_output
from llm4llm.service.report import job_report
from llm4llm.store.events import Stored
from llm4llm.store.listing import Mark
from llm4llm.web.report import render_report

_PING_S = 15
_STREAM_LOOK_S = 60.0  # a stream looks at the job at least so often
_SETTLING_S = 0.5  # the last event follows the job's end within milliseconds
_RECENT_S = 10.0
_RETRY_MS = 1000
_LAST_ID = 2**31 - 1  # ids of events are 32-bit integers in PostgreSQL
_EVENT = {
    "type": "object",
    "description": "One event; its data is a JSON text.",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string", "examples": ["stage_finished", "end"]},
        "data": {"type": "string"},
    },
}
_HTML_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:"

log = logging.getLogger("llm4llm.api")
router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["results"])


class Hotspots(BaseModel):
    """Where the workload's time goes, and what became of each place."""

    hotspots: list[dict[str, Any]]


class Candidates(BaseModel):
    """Every candidate that was judged, in the order of proposal."""

    candidates: list[dict[str, Any]]


@router.get(
    "/events",
    response_class=EventSourceResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": _EVENT}}, "description": "Server-sent events"},
        **documented(404, *COMMON),
    },
)
async def events(
    job_id: JobId,
    here: Here,
    caller: Reader,
    last_event_id: Annotated[int, Header(ge=0, le=_LAST_ID, description="Continue after this event.")] = 0,
) -> EventSourceResponse:
    """Everything that happens to the job, from its start or after `Last-Event-ID`; ends with an event `end` that carries the job."""
    mark = await run_in_threadpool(visible, job_id, caller, here.store)
    return EventSourceResponse(_until_a_fault(_stream(here, job_id, mark, last_event_id)), ping=_PING_S)


async def _until_a_fault(stream: AsyncIterator[ServerSentEvent]) -> AsyncIterator[ServerSentEvent]:
    """The stream, ended in good order if the database goes away: whoever follows comes back with the last id."""
    try:
        async for event in stream:
            yield event
    except InfraError as error:
        log.warning("a stream of events was ended: %s", error)


async def _stream(here: Context, job_id: str, mark: Mark, last: int) -> AsyncIterator[ServerSentEvent]:
    settled = False
    yield ServerSentEvent(comment=f"events of {job_id}", retry=_RETRY_MS)
    while not here.watch.closing:
        found = await run_in_threadpool(here.store.events.after, job_id, last)
        for one in found:
            yield _sent(one)
            last = one.id
        if found:
            continue
        if mark.ended and settled:
            view = await run_in_threadpool(here.views.of, job_id, mark)
            yield ServerSentEvent(event="end", data=view.model_dump_json())
            return
        if mark.ended:
            settled = True
            view = await run_in_threadpool(here.views.of, job_id, mark)
            ended = datetime.fromisoformat(view.ended_at) if view.ended_at else None
            if ended is None or (here.clock.now() - ended).total_seconds() > _RECENT_S:
                continue
        now = await here.watch.changed(job_id, mark, _SETTLING_S if mark.ended else _STREAM_LOOK_S)
        if now is None:  # the job was removed
            return
        mark = now


def _sent(stored: Stored) -> ServerSentEvent:
    body = {**stored.event.model_dump(mode="json"), "at": stored.at}
    return ServerSentEvent(id=str(stored.id), event=stored.event.kind, data=json.dumps(body))


@router.get("/hotspots", response_model=Hotspots, responses=documented(404, *COMMON))
def hotspots(job_id: JobId, here: Here, caller: Reader) -> Response:
    """Module families by their share of the workload's time, each accepted, rejected or skipped with its reason."""
    visible(job_id, caller, here.store)
    return _json({"hotspots": job_report(here.store, job_id)["hotspots"]})


@router.get("/candidates", response_model=Candidates, responses=documented(404, *COMMON))
def candidates(job_id: JobId, here: Here, caller: Reader) -> Response:
    """Candidates with the judge's verdicts."""
    visible(job_id, caller, here.store)
    return _json({"candidates": job_report(here.store, job_id)["candidates"]})


@router.get(
    "/report",
    response_class=JSONResponse,
    responses={
        200: {"content": {"application/json": {"schema": {"type": "object"}}, "text/html": {"schema": {"type": "string"}}}},
        **documented(404, *COMMON),
    },
)
def report(
    job_id: JobId,
    here: Here,
    caller: Reader,
    accept: Annotated[str, Header(max_length=1000)] = "",
    form: Annotated[Literal["json", "html"] | None, Query(alias="format")] = None,
) -> Response:
    """The report, in any state of the job: JSON, or one self-contained page with `?format=html` or `Accept: text/html`."""
    visible(job_id, caller, here.store)
    facts = job_report(here.store, job_id)
    if form == "html" or (form is None and "text/html" in accept):
        return HTMLResponse(render_report(facts), headers={"Content-Security-Policy": _HTML_POLICY, "Vary": "Accept"})
    return _json(facts)


@router.get(
    "/logs",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Text"}, **documented(404, *COMMON)},
)
def logs(
    job_id: JobId,
    here: Here,
    caller: Reader,
    stream: Annotated[Stream, Query(description="The job's events, or what its script printed (the end of it).")] = "events",
) -> Response:
    """Text for people."""
    visible(job_id, caller, here.store)
    if stream == "events":
        return StreamingResponse(event_lines(job_id, here.store), media_type="text/plain")
    return Response(script_output(job_id, stream, here.store, here.settings.home), media_type="text/plain")


@router.get(
    "/bundle",
    response_class=FileResponse,
    responses={
        200: {
            "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
            "headers": {"X-Checksum-Sha256": {"description": "sha256 of the whole file, in hex.", "schema": {"type": "string"}}},
            "description": "The bundle",
        },
        206: {"content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}}, "description": "A part of it"},
        **documented(400, 404, 409, 416, *COMMON),
    },
)
def bundle(
    job_id: JobId,
    here: Here,
    caller: Reader,
    range_: Annotated[str | None, Header(alias="Range", description="Parts of the file, as bytes=0-99.")] = None,
) -> Response:
    """What was accepted, as a zip; the sha256 of the whole file is in `X-Checksum-Sha256` and `Repr-Digest` (RFC 9530)."""
    mark = visible(job_id, caller, here.store)
    packed = here.store.stages.results(job_id).bundle
    if packed is None or packed.bundle is None:
        raise NoBundle(job_id, _why_none(here, job_id, mark))
    sha256 = packed.bundle.sha256
    headers = {
        "X-Checksum-Sha256": sha256,
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:",
        "ETag": f'"{sha256}"',
        "Cache-Control": "private, no-cache",
    }
    return _Bundle(here.store.blobs.path(sha256), headers=headers, media_type="application/zip", filename=f"bundle-{job_id}.zip")


class _Bundle(FileResponse):
    """A file whose refusals of ranges have the one shape of errors."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Response | None = None

        async def checked(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= 400:
                size = {name.decode(): value.decode() for name, value in message["headers"] if name == b"content-range"}
                code = "range_not_satisfiable" if message["status"] == 416 else "malformed"
                refused = problem(message["status"], code, "the range can't be served", "ask for bytes=FIRST-LAST within the file", size)
            elif refused is None:
                await send(message)

        await super().__call__(scope, receive, checked)
        if refused is not None:
            await refused(scope, receive, send)


def _why_none(here: Context, job_id: str, mark: Mark) -> str:
    job = here.store.jobs.get(job_id)
    if job.reason is not None:
        return f"{job.reason.code}: {job.reason.text}"
    return "it has not ended yet" if not mark.ended else JobStatus(mark.status).value


def _json(value: Any) -> Response:
    return Response(canonical_json(value), media_type="application/json")
