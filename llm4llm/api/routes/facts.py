"""What the service offers, and how it is."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from llm4llm.api.context import Admin, Here, Reader
from llm4llm.api.metrics import CONTENT_TYPE
from llm4llm.api.problems import documented
from llm4llm.api.routes.jobs import COMMON
from llm4llm.assets import agent_roles, target_profiles
from llm4llm.schema.target import TargetProfile

router = APIRouter(tags=["service"])


class Targets(BaseModel):
    """Shipped profiles; `auto` is the worker's own machine."""

    targets: tuple[TargetProfile, ...]


class Agent(BaseModel):
    """Who may propose candidates."""

    name: str
    description: str
    limits: dict[str, float]


class Agents(BaseModel):
    agents: list[Agent]


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """`isolation` is what children are cut off from: full (network and files), network-off, files-only or limits-only."""

    status: Literal["ready"] = "ready"
    database: Literal["sqlite", "postgresql"]
    isolation: str
    keys_required: bool


@router.get("/v1/targets", responses=documented(*COMMON))
def targets(here: Here, caller: Reader) -> Targets:
    """Target profiles."""
    return Targets(targets=target_profiles())


@router.get("/v1/agents", responses=documented(*COMMON))
def agents(here: Here, caller: Reader) -> Agents:
    """Agents."""
    return Agents(agents=[Agent(name=role.name, description=role.description, limits=role.limits) for role in agent_roles()])


@router.get("/healthz", responses=documented(500))
async def healthz() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", responses=documented(500, 503))
def readyz(here: Here) -> Readiness:
    """The database answers; which one, and which isolation is active."""
    here.store.ping()
    database: Literal["sqlite", "postgresql"] = "sqlite" if here.settings.database.startswith("sqlite") else "postgresql"
    return Readiness(database=database, isolation=here.isolation, keys_required=here.gate.required)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}, "description": "Figures"}, **documented(*COMMON)},
)
def metrics(here: Here, caller: Admin) -> Response:
    """Figures for Prometheus; needs the scope admin where keys are required."""
    return Response(here.metrics.text(), media_type=CONTENT_TYPE)
