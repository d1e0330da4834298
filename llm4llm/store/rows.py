"""Tables. Facts that are only ever read whole are JSON; what is searched or compared has a column.

Times are ISO 8601 text in UTC of equal length: they sort as text and mean the same on both databases.
"""

from typing import Any, ClassVar

from sqlalchemy import JSON, CheckConstraint, Double, ForeignKey, ForeignKeyConstraint, Index, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
_TIME = String(40)
_NAME = String(64)


class Base(DeclarativeBase):
    """Constraint names are fixed, so that migrations can speak of them on both databases."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: JSON(none_as_null=True)}


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint("status in ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="status"),
        Index(None, "created_at"),
        Index(None, "status", "created_at"),
        Index(None, "owner", "created_at"),
    )

    id: Mapped[str] = mapped_column(_NAME, primary_key=True)
    request: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(String(16))
    stage: Mapped[str | None] = mapped_column(String(16))
    reason: Mapped[dict[str, Any] | None]
    created_at: Mapped[str] = mapped_column(_TIME)
    ended_at: Mapped[str | None] = mapped_column(_TIME)
    cancel_requested_at: Mapped[str | None] = mapped_column(_TIME)
    owner: Mapped[str | None] = mapped_column(_NAME)  # id of the API key that submitted it; None: this machine's own user
    queue: Mapped[str] = mapped_column(String(16), default="workers", server_default="workers")  # see store.jobs.Queue
    attempts: Mapped[int] = mapped_column(default=0, server_default="0")  # how often it was taken since a stage of it finished last
    lease_holder: Mapped[str | None] = mapped_column(_NAME)  # the worker that runs it
    lease_expires_at: Mapped[str | None] = mapped_column(_TIME)
    not_before: Mapped[str | None] = mapped_column(_TIME)  # after a failed attempt: when the next one may begin


class StageRunRow(Base):
    __tablename__ = "stage_runs"
    __table_args__ = (
        UniqueConstraint("job_id", "stage", "attempt"),
        CheckConstraint("status in ('running', 'finished', 'failed')", name="status"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(_NAME, ForeignKey("jobs.id", ondelete="CASCADE"))
    stage: Mapped[str] = mapped_column(String(16))
    attempt: Mapped[int]
    status: Mapped[str] = mapped_column(String(16))
    result: Mapped[dict[str, Any] | None]
    reason: Mapped[dict[str, Any] | None]
    seconds: Mapped[float | None] = mapped_column(Double)
    started_at: Mapped[str] = mapped_column(_TIME)
    ended_at: Mapped[str | None] = mapped_column(_TIME)


class TaskRow(Base):
    __tablename__ = "tasks"

    job_id: Mapped[str] = mapped_column(_NAME, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    id: Mapped[str] = mapped_column(_NAME, primary_key=True)
    position: Mapped[int]  # order in which the job works on them
    facts: Mapped[dict[str, Any]]


class CandidateRow(Base):
    __tablename__ = "candidates"
    __table_args__ = (ForeignKeyConstraint(["job_id", "task_id"], ["tasks.job_id", "tasks.id"], ondelete="CASCADE"),)

    job_id: Mapped[str] = mapped_column(_NAME, primary_key=True)
    id: Mapped[str] = mapped_column(_NAME, primary_key=True)
    task_id: Mapped[str] = mapped_column(_NAME)
    position: Mapped[int]  # order of proposal within the job
    sha256: Mapped[str] = mapped_column(String(64))
    author: Mapped[str] = mapped_column(Text)
    hypothesis: Mapped[str] = mapped_column(Text)
    parent: Mapped[str | None] = mapped_column(_NAME)


class VerdictRow(Base):
    __tablename__ = "verdicts"
    __table_args__ = (
        ForeignKeyConstraint(["job_id", "candidate_id"], ["candidates.job_id", "candidates.id"], ondelete="CASCADE"),
        CheckConstraint("stage in ('episode', 'verdict')", name="stage"),
    )

    job_id: Mapped[str] = mapped_column(_NAME, primary_key=True)
    candidate_id: Mapped[str] = mapped_column(_NAME, primary_key=True)
    stage: Mapped[str] = mapped_column(String(16), primary_key=True)
    verdict: Mapped[dict[str, Any]]
    at: Mapped[str] = mapped_column(_TIME)


class EventRow(Base):
    __tablename__ = "events"
    __table_args__ = (Index(None, "job_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(_NAME, ForeignKey("jobs.id", ondelete="CASCADE"))
    at: Mapped[str] = mapped_column(_TIME)
    kind: Mapped[str] = mapped_column(String(16), default="note", server_default="note")  # the event's own
    event: Mapped[dict[str, Any]]


class ApiKeyRow(Base):
    __tablename__ = "api_keys"
    __table_args__ = (UniqueConstraint("digest"),)

    id: Mapped[str] = mapped_column(_NAME, primary_key=True)
    name: Mapped[str] = mapped_column(_NAME)
    digest: Mapped[str] = mapped_column(String(64))  # sha256 of the key, which has 256 random bits and is stored nowhere
    facts: Mapped[dict[str, Any]]  # scopes and limits
    created_at: Mapped[str] = mapped_column(_TIME)
    revoked_at: Mapped[str | None] = mapped_column(_TIME)
    last_used_at: Mapped[str | None] = mapped_column(_TIME)


class IdempotencyKeyRow(Base):
    __tablename__ = "idempotency_keys"

    owner: Mapped[str] = mapped_column(_NAME, primary_key=True)  # an API key's id, or "local"
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str] = mapped_column(_NAME, ForeignKey("jobs.id", ondelete="CASCADE"))
    created_at: Mapped[str] = mapped_column(_TIME)


class DeviceLeaseRow(Base):
    __tablename__ = "device_leases"

    device: Mapped[str] = mapped_column(String(128), primary_key=True)  # a GPU's UUID, or "HOST/cpu"
    holder: Mapped[str] = mapped_column(_NAME)
    expires_at: Mapped[str] = mapped_column(_TIME)
