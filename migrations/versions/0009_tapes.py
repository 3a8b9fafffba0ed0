"""Nodes say which tapes they have of a version, and what they were good for.

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("placements", sa.Column("tapes", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("placements", sa.Column("replays", sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    op.add_column("placements", sa.Column("eager_reason", sa.Text(), server_default=sa.text("''"), nullable=False))


def downgrade() -> None:
    for column in ("tapes", "replays", "eager_reason"):
        op.drop_column("placements", column)
