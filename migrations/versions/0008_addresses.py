"""Every artefact has a range of virtual addresses of its own; those that are there are given theirs.

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

BASE, END, GRANULE = 0x5000_0000_0000, 0x5500_0000_0000, 32 << 20
LEAST, MOST = 512 << 20, 64 << 30
SIZE = "(weights_bytes + state_bytes + scratch_bytes)"

# Weights in whole granules; state and scratch twice as much each, in bounds; in the order in which artefacts came.
ASSIGN = f"""
    WITH sized AS (
        SELECT digest, created_at,
               (weights_bytes + {GRANULE - 1}) / {GRANULE} * {GRANULE} AS weights,
               (LEAST(GREATEST(2 * weights_bytes, {LEAST}), {MOST}) + {GRANULE - 1}) / {GRANULE} * {GRANULE} AS beside
          FROM artefacts
    )
    INSERT INTO address_ranges (artefact_digest, base, weights_bytes, state_bytes, scratch_bytes)
    SELECT digest,
           {BASE} + SUM(weights + 2 * beside) OVER (ORDER BY created_at, digest) - (weights + 2 * beside),
           weights, beside, beside
      FROM sized
"""  # noqa: S608 - numbers of this file


def upgrade() -> None:
    op.create_table(
        "address_ranges",
        sa.Column("artefact_digest", sa.Text(), nullable=False),
        sa.Column("base", sa.BigInteger(), nullable=False),
        sa.Column("weights_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state_bytes", sa.BigInteger(), nullable=False),
        sa.Column("scratch_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "weights_bytes >= 0 AND state_bytes >= 0 AND scratch_bytes >= 0", name=op.f("ck_address_ranges_bytes")
        ),
        sa.CheckConstraint(f"{SIZE} > 0", name=op.f("ck_address_ranges_size")),
        sa.CheckConstraint(
            f"base >= {BASE} AND base + {SIZE} <= {END}", name=op.f("ck_address_ranges_bounds")
        ),
        sa.CheckConstraint(
            f"base % {GRANULE} = 0 AND weights_bytes % {GRANULE} = 0 "
            f"AND state_bytes % {GRANULE} = 0 AND scratch_bytes % {GRANULE} = 0",
            name=op.f("ck_address_ranges_alignment"),
        ),
        sa.ForeignKeyConstraint(
            ["artefact_digest"], ["artefacts.digest"], name=op.f("fk_address_ranges_artefact_digest"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("artefact_digest", name=op.f("pk_address_ranges")),
        postgresql.ExcludeConstraint((sa.text(f"int8range(base, base + {SIZE})"), "&&"), name=op.f("no_overlap")),
    )  # fmt: skip
    op.execute(ASSIGN)


def downgrade() -> None:
    op.drop_table("address_ranges")
