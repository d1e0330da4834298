"""The app: routes, errors and OpenAPI put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

import llm4llm
from llm4llm.api.context import Context
from llm4llm.api.front import Front
from llm4llm.api.problems import Problem, install
from llm4llm.api.routes import facts, jobs, results

_THREADS = 10
_DESCRIPTION = """Hand in a PyTorch inference script, follow the job, download a verified bundle of patches.

Every error is `application/problem+json` (RFC 9457) with a `code`. Lists are paged by cursor. A status can be waited for with `?wait=30`
and `If-None-Match`; events are a resumable stream. Repeating a submission is safe with an `Idempotency-Key`."""


def create_app(context: Context) -> FastAPI:
    """An app over an open store; whoever calls it closes the store."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # fewer than the database pool has connections: a request that holds a thread never waits for a connection
        to_thread.current_default_thread_limiter().total_tokens = _THREADS
        yield
        context.watch.close()

    app = FastAPI(
        title="llm4llm",
        version=llm4llm.__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
    )
    app.state.context = context
    app.include_router(jobs.router)
    app.include_router(results.router)
    app.include_router(facts.router)
    install(app)
    app.add_middleware(Front, metrics=context.metrics, keys_required=context.gate.required)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs", {}))
        schemas["Problem"] = problem
        # FastAPI's own shape of validation errors; ours took its place
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema
