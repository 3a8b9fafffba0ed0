"""Nodes are known by the address of node-router's link, too. A node registers again within seconds and says it.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("link_address", sa.Text(), server_default="", nullable=False))
    op.alter_column("nodes", "link_address", server_default=None)


def downgrade() -> None:
    op.drop_column("nodes", "link_address")
