"""Nodes say of a version how much device memory it was seen to hold beside its weights.

Revision ID: 0012
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    column = sa.Column("measured_working_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    op.add_column("placements", column)


def downgrade() -> None:
    op.drop_column("placements", "measured_working_bytes")
