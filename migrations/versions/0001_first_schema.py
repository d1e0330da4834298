"""first schema: jobs, stage runs, tasks, candidates, verdicts, events"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_NAME = sa.String(64)
_TIME = sa.String(40)


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", _NAME, nullable=False),
        sa.Column("request", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("stage", sa.String(16)),
        sa.Column("reason", sa.JSON(none_as_null=True)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sa.Column("cancel_requested_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.CheckConstraint("status in ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_jobs_status")),
    )
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"])
    op.create_table(
        "stage_runs",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", _NAME, nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True)),
        sa.Column("reason", sa.JSON(none_as_null=True)),
        sa.Column("seconds", sa.Double()),
        sa.Column("started_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_stage_runs"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_stage_runs_job_id", ondelete="CASCADE"),
        sa.UniqueConstraint("job_id", "stage", "attempt", name="uq_stage_runs_job_id_stage_attempt"),
        sa.CheckConstraint("status in ('running', 'finished', 'failed')", name=op.f("ck_stage_runs_status")),
    )
    op.create_table(
        "tasks",
        sa.Column("job_id", _NAME, nullable=False),
        sa.Column("id", _NAME, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "id", name="pk_tasks"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_tasks_job_id", ondelete="CASCADE"),
    )
    op.create_table(
        "candidates",
        sa.Column("job_id", _NAME, nullable=False),
        sa.Column("id", _NAME, nullable=False),
        sa.Column("task_id", _NAME, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("hypothesis", sa.Text(), nullable=False),
        sa.Column("parent", _NAME),
        sa.PrimaryKeyConstraint("job_id", "id", name="pk_candidates"),
        sa.ForeignKeyConstraint(
            ["job_id", "task_id"], ["tasks.job_id", "tasks.id"], name="fk_candidates_job_id_task_id", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "verdicts",
        sa.Column("job_id", _NAME, nullable=False),
        sa.Column("candidate_id", _NAME, nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("verdict", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "candidate_id", "stage", name="pk_verdicts"),
        sa.ForeignKeyConstraint(
            ["job_id", "candidate_id"], ["candidates.job_id", "candidates.id"], name="fk_verdicts_job_id_candidate_id", ondelete="CASCADE"
        ),
        sa.CheckConstraint("stage in ('episode', 'verdict')", name=op.f("ck_verdicts_stage")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", _NAME, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("event", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id", ondelete="CASCADE"),
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])


def downgrade() -> None:
    for table in ("events", "verdicts", "candidates", "tasks", "stage_runs", "jobs"):
        op.drop_table(table)
