"""One shape for every error: RFC 9457 problem details with a code that programs may branch on."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from llm4llm.errors import InfraError, Llm4llmError, NotAuthenticated, RateLimited, TooManyJobs, UserError

MEDIA_TYPE = "application/problem+json"
_STATUS = {
    "not_authenticated": 401,
    "not_permitted": 403,
    "cross_origin": 403,
    "network_not_allowed": 403,
    "unknown_job": 404,
    "no_bundle": 409,
    "job_active": 409,
    "idempotency_conflict": 409,
    "bad_upload": 400,
    "request_timeout": 408,
    "too_large": 413,
    "unsupported_media_type": 415,
    "headers_too_large": 431,
    "too_many_jobs": 429,
    "rate_limited": 429,
    "assets_missing": 500,
    "blob_damaged": 500,
}
_CODES = {400: "malformed", 404: "not_found", 405: "method_not_allowed", 416: "range_not_satisfiable"}
_EXAMPLES = {
    400: ("bad_upload", "the multipart body ends before its closing boundary"),
    401: ("not_authenticated", "this needs a valid API key"),
    403: ("not_permitted", "the API key lacks the scope 'submit'"),
    404: ("unknown_job", "there is no stored job job_1m8qy2zkv66zqdhgf"),
    408: ("request_timeout", "no byte of the body came for 60 s"),
    409: ("no_bundle", "job job_1m8qy2zkv66zqdhgf has no bundle (it has not ended yet)"),
    413: ("too_large", "the body is larger than 67108864 bytes"),
    415: ("unsupported_media_type", "a body of type 'text/plain' can't be read here"),
    416: ("range_not_satisfiable", "the range can't be served"),
    422: ("invalid_request", "budget: Input should be greater than 0"),
    429: ("rate_limited", "too many requests with this key"),
    500: ("internal_error", "a fault of llm4llm; its log says more"),
    503: ("store_unavailable", "the database can't be used"),
}
FAULTS_SHOWN = 20
_BUSY_RETRY_S = 5
_JOBS_RETRY_S = 30


class UnsupportedMediaType(UserError):
    code = "unsupported_media_type"

    def __init__(self, found: str) -> None:
        super().__init__(f"a body of type {found[:100]!r} can't be read here", "send multipart/form-data or application/json")


class HeadersTooLarge(UserError):
    code = "headers_too_large"

    def __init__(self, what: str) -> None:
        super().__init__(what, "send plain HTTP/1.1 with fewer headers")


class RequestTimeout(UserError):
    """A client that began a request and does not go on with it."""

    code = "request_timeout"

    def __init__(self, what: str) -> None:
        super().__init__(what, "send the request again, without pauses")


class TooManyConnections(InfraError):
    code = "too_many_connections"

    def __init__(self) -> None:
        super().__init__("too many connections are open", "close those that are not needed, and try again later")


class InvalidRequest(UserError):
    """Values that are not of the documented form."""

    code = "invalid_request"

    def __init__(self, faults: list[dict[str, str]]) -> None:
        first = faults[0] if faults else {"where": "request", "what": "is not valid"}
        super().__init__(f"{first['where']}: {first['what']}", "see /openapi.json for what is expected")
        self.faults = faults


class Fault(BaseModel):
    """One value that is not as it should be."""

    where: str = Field(examples=["budget"])
    what: str = Field(examples=["Input should be greater than 0"])


class Problem(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(examples=["urn:llm4llm:problem:unknown_job"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no stored job job_0"])
    code: str = Field(examples=["unknown_job"])
    fix: str = Field(default="", description="What the caller can do about it.")
    errors: list[Fault] = Field(default=[], description="Every value at fault; only with the code invalid_request.")


def problem(status: int, code: str, detail: str, fix: str = "", headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """A response in the one shape."""
    facts = {"type": f"urn:llm4llm:problem:{code}", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, "code": code}
    body = json.dumps({**facts, "fix": fix, **more})
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, MEDIA_TYPE)


def of_error(error: Llm4llmError) -> Response:
    """The response for one of our own errors."""
    status = _STATUS.get(error.code, 422 if isinstance(error, UserError) else 503 if isinstance(error, InfraError) else 500)
    headers = {}
    if isinstance(error, NotAuthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(error, RateLimited):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif isinstance(error, TooManyJobs):
        headers["Retry-After"] = str(_JOBS_RETRY_S)
    elif status == 503:
        headers["Retry-After"] = str(_BUSY_RETRY_S)
    more = {"errors": error.faults} if isinstance(error, InvalidRequest) else {}
    return problem(status, error.code, error.what, error.fix, headers, **more)


def faults_of(error: ValidationError | RequestValidationError, skip: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Where and what, without the values: they may be long, or secret."""
    faults = []
    for one in error.errors()[:FAULTS_SHOWN]:
        where = ".".join(str(part)[:60] for part in one["loc"] if part not in skip)
        faults.append({"where": where or "request", "what": str(one["msg"])[:300]})
    return faults


def install(app: FastAPI) -> None:
    """Make every error of the app a problem."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, Llm4llmError)
        return of_error(error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return of_error(InvalidRequest(faults_of(error, ("query", "path", "header", "body"))))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "http_error")
        detail = f"there is no {request.method} {request.url.path[:200]}" if error.status_code in (404, 405) else str(error.detail)
        headers = {**(error.headers or {}), **({"Allow": _allowed(request)} if error.status_code == 405 else {})}
        return problem(error.status_code, code, detail, "see /openapi.json for what there is", headers)

    async def fault(request: Request, error: Exception) -> Response:
        return problem(500, "internal_error", "a fault of llm4llm; its log says more", "report it with the time of the request")

    app.add_exception_handler(Llm4llmError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, fault)


def _allowed(request: Request) -> str:
    """The methods of all routes at this address; one route alone knows only its own."""
    here = (route for route in _single(request.app.routes) if route.matches(request.scope)[0] is not Match.NONE)
    methods = {method for route in here for method in getattr(route, "methods", None) or ()}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _single(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Newer releases of FastAPI keep an included router as one route."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from [route] if inner is None else _single(inner.routes)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of these error responses, for a route's `responses`."""
    return {status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: _content(status)}} for status in statuses}


def _content(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    code, detail = _EXAMPLES[status]
    facts = {"type": f"urn:llm4llm:problem:{code}", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, "code": code}
    return {"schema": schema, "example": facts}
