"""the service: owners, leases and attempts of jobs; API keys, idempotency keys, device leases"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NAME = sa.String(64)
_TIME = sa.String(40)


def upgrade() -> None:
    with op.batch_alter_table("jobs") as table:
        table.add_column(sa.Column("owner", _NAME))
        table.add_column(sa.Column("queue", sa.String(16), nullable=False, server_default="workers"))
        table.add_column(sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("lease_holder", _NAME))
        table.add_column(sa.Column("lease_expires_at", _TIME))
        table.add_column(sa.Column("not_before", _TIME))
    # until now every job was run by the process that submitted it
    op.execute("update jobs set queue = 'foreground'")
    op.create_index("ix_jobs_status_created_at", "jobs", ["status", "created_at"])
    op.create_index("ix_jobs_owner_created_at", "jobs", ["owner", "created_at"])
    op.create_table(
        "api_keys",
        sa.Column("id", _NAME, nullable=False),
        sa.Column("name", _NAME, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("revoked_at", _TIME),
        sa.Column("last_used_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("owner", _NAME, nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("body_sha256", sa.String(64), nullable=False),
        sa.Column("job_id", _NAME, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_idempotency_keys_job_id", ondelete="CASCADE"),
    )
    op.create_table(
        "device_leases",
        sa.Column("device", sa.String(128), nullable=False),
        sa.Column("holder", _NAME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("device", name="pk_device_leases"),
    )


def downgrade() -> None:
    for table in ("device_leases", "idempotency_keys", "api_keys"):
        op.drop_table(table)
    op.drop_index("ix_jobs_owner_created_at", "jobs")
    op.drop_index("ix_jobs_status_created_at", "jobs")
    with op.batch_alter_table("jobs") as table:
        for column in ("not_before", "lease_expires_at", "lease_holder", "attempts", "queue", "owner"):
            table.drop_column(column)
