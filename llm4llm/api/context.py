"""What routes work with."""

import ipaddress
import random
from dataclasses import dataclass, field
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from llm4llm.api.marks import Marks
from llm4llm.api.metrics import Metrics
from llm4llm.api.watch import Watch
from llm4llm.errors import NotAuthenticated
from llm4llm.kit import Clock
from llm4llm.schema.apikey import Caller, Scope
from llm4llm.service.access import demand
from llm4llm.service.intake import Intake
from llm4llm.service.keys import Gate
from llm4llm.service.view import Views
from llm4llm.settings import Settings
from llm4llm.store import Store

_UPLOADS_AT_ONCE = 4  # each may hash and unpack for seconds; polls have threads of their own


@dataclass(frozen=True)
class Context:
    """Everything of one running app."""

    settings: Settings
    store: Store
    clock: Clock
    gate: Gate
    intake: Intake
    views: Views
    marks: Marks
    watch: Watch
    metrics: Metrics
    isolation: str  # the level that children get
    uploads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_UPLOADS_AT_ONCE))


def make_context(settings: Settings, store: Store, clock: Clock, keys_required: bool, isolation: str) -> Context:
    """For one app on one event loop."""
    return Context(
        settings=settings,
        store=store,
        clock=clock,
        gate=Gate(store, clock, keys_required),
        intake=Intake(store, settings, clock, random.SystemRandom()),
        views=Views(store, clock),
        marks=Marks(store),
        watch=Watch(store),
        metrics=Metrics(store),
        isolation=isolation,
    )


def _context(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


async def _here(request: Request) -> Context:
    return _context(request)


def _network(host: str) -> str:
    """What one client can choose among: a single IPv4 address, or a whole IPv6 network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


_bearer = HTTPBearer(auto_error=False, description="An API key. Not asked for where the server runs without keys, on loopback.")


class _Needs:
    """A dependency: the caller, if the key has the scope."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]) -> Caller:
        gate = _context(request).gate
        secret = credentials.credentials if credentials else None
        try:
            caller = gate.known(secret)
            if caller is None:
                caller = await run_in_threadpool(gate.caller, secret)
        except NotAuthenticated:
            gate.refused(_network(request.client.host) if request.client else "")
            raise
        gate.admit(caller)
        demand(caller, self._scope)
        return caller


Here = Annotated[Context, Depends(_here)]
Reader = Annotated[Caller, Depends(_Needs(Scope.READ))]
Submitter = Annotated[Caller, Depends(_Needs(Scope.SUBMIT))]
Admin = Annotated[Caller, Depends(_Needs(Scope.ADMIN))]
