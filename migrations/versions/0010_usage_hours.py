"""Usage by the hour, and time in host memory.

What was used before is not known by the hour: it is in the totals only, except for single records that are still there.

Revision ID: 0010
Revises: 0009
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Records whose time is far from when they came were made by a clock that is wrong: they count when they came.
FILL = """
    INSERT INTO usage_hours
    SELECT date_trunc('hour', counted_at, 'UTC') AS hour, function, version_id, tenant, count(*),
           count(*) FILTER (WHERE status_code <> 0), sum(device_ms), count(*) FILTER (WHERE swapped_in), sum(swap_ms),
           0, 0
      FROM (SELECT *, CASE WHEN finished_at BETWEEN recorded_at - interval '1 day' AND recorded_at + interval '1 hour'
                           THEN finished_at ELSE recorded_at END AS counted_at
              FROM usage_records) AS known
     GROUP BY 1, 2, 3, 4
"""


def upgrade() -> None:
    for name in ("host_ms", "host_byte_s"):
        op.add_column("usage_totals", sa.Column(name, sa.Double(), server_default=sa.text("0"), nullable=False))
    op.create_table(
        "usage_hours",
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("device_ms", sa.Double(), nullable=False),
        sa.Column("swap_ins", sa.BigInteger(), nullable=False),
        sa.Column("swap_ms", sa.Double(), nullable=False),
        sa.Column("host_ms", sa.Double(), nullable=False),
        sa.Column("host_byte_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "function", "version_id", "tenant", name=op.f("pk_usage_hours")),
    )
    op.execute(FILL)


def downgrade() -> None:
    op.drop_table("usage_hours")
    for name in ("host_byte_s", "host_ms"):
        op.drop_column("usage_totals", name)
