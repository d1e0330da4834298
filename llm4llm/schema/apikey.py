"""Who may use the service, and how much of it."""

from enum import StrEnum

from pydantic import Field

from llm4llm.schema.base import Frozen


class Scope(StrEnum):
    """What a key may do; `admin` includes the others and sees everybody's jobs."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"


class KeyLimits(Frozen):
    """How much one key may ask for."""

    concurrent_jobs: int = Field(default=20, ge=1)  # that have not ended
    request_bytes: int = Field(default=64 << 20, ge=1 << 10)  # one request's body
    budget_seconds: float = Field(default=6 * 3600.0, gt=0, allow_inf_nan=False)  # of one job
    requests_per_second: float = Field(default=50.0, gt=0, allow_inf_nan=False)
    burst: int = Field(default=200, ge=1)  # requests at once after a quiet time


class ApiKey(Frozen):
    """A stored key without the key itself, of which only the sha256 is kept."""

    id: str
    name: str
    scopes: frozenset[Scope]
    limits: KeyLimits
    created_at: str
    revoked_at: str | None = None
    last_used_at: str | None = None


class Caller(Frozen):
    """Who asks: a key, or this machine's own user where keys are not required."""

    owner: str | None  # id of the key; None: this machine's own user
    scopes: frozenset[Scope]
    limits: KeyLimits

    @property
    def sees_all(self) -> bool:
        return Scope.ADMIN in self.scopes

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes
