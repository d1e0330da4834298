"""events by their kind"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("events") as table:
        table.add_column(sa.Column("kind", sa.String(16), nullable=False, server_default="note"))
    # what was kept of a script's output was a note until now
    op.execute("update events set kind = 'output' where cast(event as text) like '%\"script_output\": {\"std%'")


def downgrade() -> None:
    with op.batch_alter_table("events") as table:
        table.drop_column("kind")
