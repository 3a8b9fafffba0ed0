"""Usage says whose requests they were.

What was recorded before has no tenant: nobody knows any more who asked.

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("usage_records", "usage_totals"):
        op.add_column(table, sa.Column("tenant", sa.Text(), server_default=sa.text("''"), nullable=False))
    op.drop_constraint("pk_usage_totals", "usage_totals")
    op.create_primary_key("pk_usage_totals", "usage_totals", ["function", "version_id", "tenant"])


def downgrade() -> None:
    op.drop_constraint("pk_usage_totals", "usage_totals")
    op.execute(
        """
        CREATE TEMPORARY TABLE merged ON COMMIT DROP AS
        SELECT function, version_id, sum(requests)::bigint AS requests, sum(failures)::bigint AS failures,
               sum(device_ms) AS device_ms, sum(swap_ins)::bigint AS swap_ins, sum(swap_ms) AS swap_ms
        FROM usage_totals GROUP BY function, version_id
        """
    )
    op.execute("DELETE FROM usage_totals")
    for table in ("usage_records", "usage_totals"):
        op.drop_column(table, "tenant")
    op.execute("INSERT INTO usage_totals SELECT * FROM merged")
    op.create_primary_key("pk_usage_totals", "usage_totals", ["function", "version_id"])
