"""Nodes say of a version whether swapping it in slows its requests down much, and what they measured.

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("placements", sa.Column("heavy", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column("placements", sa.Column("heaviness", sa.Text(), server_default=sa.text("''"), nullable=False))


def downgrade() -> None:
    for column in ("heavy", "heaviness"):
        op.drop_column("placements", column)
