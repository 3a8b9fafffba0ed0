"""Tenants, keys and secrets; functions belong to tenants.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(sa.schema.CreateSequence(sa.Sequence("access_generation")))
    op.create_table(
        "tenants",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("requests_per_second", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("burst", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_concurrent_requests", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("weight", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("name ~ '^[a-z0-9][a-z0-9-]{0,62}$'", name=op.f("ck_tenants_name")),
        sa.CheckConstraint(
            "requests_per_second >= 0 AND burst >= 0 AND max_concurrent_requests >= 0", name=op.f("ck_tenants_quota")
        ),
        sa.CheckConstraint("weight BETWEEN 1 AND 1000", name=op.f("ck_tenants_weight")),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
    )
    # Whose the functions are that were deployed before there were tenants, and all where nobody needs a key.
    op.execute("INSERT INTO tenants (name, created_at) VALUES ('default', now())")
    op.create_table(
        "keys",
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("previous_digest", sa.LargeBinary(), nullable=True),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("role IN ('INVOKE', 'DEPLOY', 'ADMIN')", name=op.f("ck_keys_role")),
        sa.CheckConstraint("octet_length(digest) = 32", name=op.f("ck_keys_digest")),
        sa.CheckConstraint("(previous_digest IS NULL) = (previous_until IS NULL)", name=op.f("ck_keys_previous")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_keys_tenant", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("key_id", name="pk_keys"),
    )
    op.create_index("ix_keys_digest", "keys", ["digest"], unique=True)
    op.create_index("ix_keys_tenant", "keys", ["tenant"], unique=False)
    op.create_table(
        "secrets",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$'", name=op.f("ck_secrets_name")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_secrets_tenant", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_secrets"),
    )
    op.add_column("functions", sa.Column("tenant", sa.Text(), server_default="default", nullable=False))
    op.create_foreign_key("fk_functions_tenant", "functions", "tenants", ["tenant"], ["name"])
    op.create_index("ix_functions_tenant", "functions", ["tenant"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_functions_tenant", "functions")
    op.drop_constraint("fk_functions_tenant", "functions")
    op.drop_column("functions", "tenant")
    for table in ("secrets", "keys", "tenants"):
        op.drop_table(table)
    op.execute(sa.schema.DropSequence(sa.Sequence("access_generation")))
