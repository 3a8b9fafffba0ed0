"""Traffic shared between the versions of a function; versions know the deployment that made them.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    shares = postgresql.JSONB(astext_type=sa.Text())
    op.add_column("functions", sa.Column("traffic", shares, server_default=sa.text("'{}'"), nullable=False))
    op.add_column("functions", sa.Column("previous_traffic", shares, nullable=True))
    op.add_column("versions", sa.Column("deployment_id", sa.Text(), server_default="", nullable=False))
    op.create_index(
        "ix_versions_function_id_deployment_id",
        "versions",
        ["function_id", "deployment_id"],
        unique=True,
        postgresql_where=sa.text("deployment_id <> ''"),
    )


def downgrade() -> None:
    op.drop_index("ix_versions_function_id_deployment_id", "versions")
    op.drop_column("versions", "deployment_id")
    op.drop_column("functions", "previous_traffic")
    op.drop_column("functions", "traffic")
