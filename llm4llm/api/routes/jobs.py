"""Jobs: hand in, list, follow, cancel, remove."""

import base64
import re
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from llm4llm.api.body import submission
from llm4llm.api.context import Context, Here, Reader, Submitter
from llm4llm.api.problems import InvalidRequest, documented
from llm4llm.api.submit_docs import SUBMISSION
from llm4llm.errors import JobActive, UnknownJob
from llm4llm.kit import remove_untrusted
from llm4llm.schema.apikey import Caller
from llm4llm.schema.job import JobStatus
from llm4llm.schema.progress import JobPage, JobView
from llm4llm.service.access import check_id, seen, visible
from llm4llm.service.jobs import cancel
from llm4llm.service.output import job_folder, own_folder
from llm4llm.service.view import etag
from llm4llm.store.listing import Mark, Wanted

COMMON = (401, 403, 422, 429, 500, 503)
LONGEST_WAIT_S = 60.0
_CURSOR = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00)\|([a-z]{1,10}_[0-9a-z]{1,50})")
_JSON = "application/json"

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
JobId = Annotated[str, Path(description="A job's id.", max_length=64, examples=["job_1m8qy2zkv66zqdhgf"])]
_ETAG = {"ETag": {"description": "Equal as long as nothing has happened to the job.", "schema": {"type": "string"}}}


@router.post(
    "",
    status_code=201,
    response_model=JobView,
    openapi_extra=SUBMISSION,
    responses={
        201: {"headers": {"Location": {"description": "The job's address.", "schema": {"type": "string"}}}},
        200: {"model": JobView, "description": "The job that was made by an earlier request with this Idempotency-Key."},
        **documented(400, 408, 409, 413, 415, *COMMON),
    },
)
async def submit(
    request: Request,
    here: Here,
    caller: Submitter,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, pattern=r"^[!-~]+$", description="Makes repeating the request safe: the same job is named."),
    ] = None,
) -> Response:
    """Hand in a script. Everything is checked before anything is stored."""
    limit = min(caller.limits.request_bytes, here.settings.max_upload_bytes)
    async with submission(request, limit, idempotency_key) as upload:
        job_id, new = await to_thread.run_sync(here.intake.take, upload, caller, limiter=here.uploads)
    mark, view = await run_in_threadpool(_seen, here, caller, job_id)
    headers = {"Location": f"/v1/jobs/{job_id}", "ETag": etag(mark)}
    return Response(view.model_dump_json(), 201 if new else 200, headers, _JSON)


@router.get("", response_model=JobPage, responses=documented(*COMMON))
def list_jobs(
    here: Here,
    caller: Reader,
    status: Annotated[JobStatus | None, Query(description="Only jobs in this state.")] = None,
    cursor: Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> Response:
    """Jobs, newest first: one's own, or everybody's with the scope admin."""
    wanted = Wanted(caller.owner, caller.sees_all, status, _decoded(cursor) if cursor is not None else None, limit + 1)
    jobs = here.store.listing.page(wanted)
    marks = here.store.listing.marks(tuple(job.id for job in jobs[:limit]))
    views = tuple(here.views.of(job.id, marks[job.id]) for job in jobs[:limit] if job.id in marks)
    more = jobs[limit - 1] if len(jobs) > limit else None
    page = JobPage(jobs=views, next_cursor=_encoded(more.created_at, more.id) if more else None)
    return Response(page.model_dump_json(), media_type=_JSON)


@router.get(
    "/{job_id}",
    response_model=JobView,
    responses={200: {"headers": _ETAG}, 304: {"description": "Nothing has happened since", "headers": _ETAG}, **documented(404, *COMMON)},
)
async def job(
    job_id: JobId,
    here: Here,
    caller: Reader,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="Seconds to wait until something happens, at most.")] = 0.0,
    if_none_match: Annotated[str | None, Header(max_length=1000)] = None,
) -> Response:
    """One job as it is now. With `wait`, answered when something has happened since the state of `If-None-Match` (or since now)."""
    check_id(job_id)
    mark = seen(job_id, caller, await here.marks.of(job_id))
    asked = _matches(if_none_match, mark)
    if wait > 0 and not mark.ended and (asked or if_none_match is None):
        found = await here.watch.changed(job_id, mark, wait)
        if found is None:
            raise UnknownJob(job_id)
        mark = found
        asked = _matches(if_none_match, mark)
    headers = {"ETag": etag(mark), "Cache-Control": "no-cache"}
    if asked:
        return Response(None, 304, headers)
    view = here.views.at_hand(job_id, mark)
    if view is None:
        view = await run_in_threadpool(here.views.of, job_id, mark)
    return Response(view.model_dump_json(), 200, headers, _JSON)


@router.post("/{job_id}/cancel", status_code=202, response_model=JobView, responses=documented(404, *COMMON))
def cancel_job(job_id: JobId, here: Here, caller: Submitter) -> Response:
    """Ask for the job to end between two steps; what finished stages gave is kept. Asking again, or too late, changes nothing."""
    visible(job_id, caller, here.store)
    cancel(job_id, here.store, here.clock)
    return Response(_seen(here, caller, job_id)[1].model_dump_json(), 202, media_type=_JSON)


@router.delete("/{job_id}", status_code=204, response_class=Response, responses=documented(404, 409, *COMMON))
def delete_job(job_id: JobId, here: Here, caller: Submitter) -> Response:
    """Remove a job that has ended, with its events, candidates, report and logs."""
    visible(job_id, caller, here.store)
    if not here.store.listing.remove(job_id):
        visible(job_id, caller, here.store)
        raise JobActive(job_id)
    folder = job_folder(here.settings.home, job_id)
    for place in (folder, own_folder(folder)):
        remove_untrusted(place)
    return Response(status_code=204)


def _seen(here: Context, caller: Caller, job_id: str) -> tuple[Mark, JobView]:
    mark = visible(job_id, caller, here.store)
    return mark, here.views.of(job_id, mark)


def _matches(if_none_match: str | None, mark: Mark) -> bool:
    """RFC 9110, 13.1.2: weak comparison with any of the list."""
    if if_none_match is None:
        return False
    own = etag(mark).removeprefix("W/")
    return any(one.strip() == "*" or one.strip().removeprefix("W/") == own for one in if_none_match.split(","))


def _encoded(created_at: str, job_id: str) -> str:
    return base64.urlsafe_b64encode(f"{created_at}|{job_id}".encode()).decode()


def _decoded(cursor: str) -> tuple[str, str]:
    try:
        found: Any = _CURSOR.fullmatch(base64.urlsafe_b64decode(cursor.encode()).decode("ascii"))
    except ValueError:
        found = None
    if found is None:
        raise InvalidRequest([{"where": "cursor", "what": "is not the next_cursor of a page"}])
    return found[1], found[2]
