"""The control plane: functions, artefacts, nodes, instances, and the ledgers of usage and events.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(sa.schema.CreateSequence(sa.Sequence("routing_generation")))
    op.create_table(
        "artefacts",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("artefact_bytes", sa.BigInteger(), nullable=False),
        sa.Column("weights_bytes", sa.BigInteger(), nullable=False),
        sa.Column("architecture", sa.Text(), nullable=False),
        sa.Column("signature", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("deleting", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("digest ~ '^[0-9a-f]{64}$'", name=op.f("ck_artefacts_digest")),
        sa.CheckConstraint("format IN ('HUGGING_FACE', 'PYTHON')", name=op.f("ck_artefacts_format")),
        sa.CheckConstraint("artefact_bytes >= 0 AND weights_bytes >= 0", name=op.f("ck_artefacts_bytes")),
        sa.PrimaryKeyConstraint("digest", name="pk_artefacts"),
    )
    op.create_table(
        "events",
        sa.Column("event_id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("event_id", name="pk_events"),
    )
    op.create_index("ix_events_subject_event_id", "events", ["subject", "event_id"], unique=False)
    op.create_table(
        "functions",
        sa.Column("function_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("active_version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$'", name=op.f("ck_functions_name")),
        sa.CheckConstraint("state IN ('ACTIVE', 'DELETING')", name=op.f("ck_functions_state")),
        sa.PrimaryKeyConstraint("function_id", name="pk_functions"),
        sa.UniqueConstraint("name", name="uq_functions_name"),
    )
    op.create_table(
        "nodes",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("incarnation", sa.Text(), nullable=False),
        sa.Column("router_address", sa.Text(), nullable=False),
        sa.Column("device_address", sa.Text(), nullable=False),
        sa.Column("coordinator_address", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("registered_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_heartbeat", sa.DateTime(timezone=True), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('READY', 'LOST')", name=op.f("ck_nodes_state")),
        sa.PrimaryKeyConstraint("node_id", name="pk_nodes"),
    )
    op.create_table(
        "usage_records",
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("device_ms", sa.Double(), nullable=False),
        sa.Column("swap_ms", sa.Double(), nullable=False),
        sa.Column("queue_ms", sa.Double(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("swapped_in", sa.Boolean(), nullable=False),
        sa.CheckConstraint(
            "device_ms >= 0 AND swap_ms >= 0 AND queue_ms >= 0", name=op.f("ck_usage_records_durations")
        ),
        sa.PrimaryKeyConstraint("request_id", name="pk_usage_records"),
    )
    op.create_index("ix_usage_records_recorded_at", "usage_records", ["recorded_at"], unique=False)
    op.create_table(
        "usage_totals",
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("device_ms", sa.Double(), nullable=False),
        sa.Column("swap_ins", sa.BigInteger(), nullable=False),
        sa.Column("swap_ms", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("function", "version_id", name="pk_usage_totals"),
    )
    op.create_table(
        "devices",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("capacity_bytes", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.CheckConstraint("kind IN ('host', 'cuda')", name=op.f("ck_devices_kind")),
        sa.CheckConstraint("capacity_bytes > 0", name=op.f("ck_devices_capacity")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.node_id"], name="fk_devices_node_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("node_id", "name", name="pk_devices"),
    )
    op.create_table(
        "node_drops",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("artefact_digest", sa.Text(), nullable=False),
        sa.Column("function", sa.Text(), nullable=False),
        sa.Column("ordered_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.node_id"], name="fk_node_drops_node_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("node_id", "version_id", name="pk_node_drops"),
    )
    op.create_table(
        "versions",
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("function_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("artefact_digest", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("version > 0", name=op.f("ck_versions_version")),
        sa.ForeignKeyConstraint(["artefact_digest"], ["artefacts.digest"], name="fk_versions_artefact_digest"),
        sa.ForeignKeyConstraint(
            ["function_id"], ["functions.function_id"], name="fk_versions_function_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("version_id", name="pk_versions"),
        sa.UniqueConstraint("function_id", "version", name="uq_versions_function_id_version"),
    )
    op.create_index("ix_versions_artefact_digest", "versions", ["artefact_digest"], unique=False)
    # Checked at commit, so that a function and its first version can be written one after the other.
    op.create_foreign_key(
        "fk_functions_active_version",
        "functions",
        "versions",
        ["function_id", "active_version"],
        ["function_id", "version"],
        initially="DEFERRED",
        deferrable=True,
    )
    op.create_table(
        "instances",
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("node_incarnation", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('PENDING', 'STARTING', 'READY', 'STOPPING', 'ENDED', 'FAILED', 'LOST')",
            name=op.f("ck_instances_state"),
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.node_id"], name="fk_instances_node_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.version_id"], name="fk_instances_version_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("instance_id", name="pk_instances"),
    )
    op.create_index(
        "ix_instances_live_node",
        "instances",
        ["node_id"],
        unique=False,
        postgresql_where=sa.text("state IN ('PENDING', 'STARTING', 'READY', 'STOPPING')"),
    )
    op.create_index("ix_instances_node_id", "instances", ["node_id"], unique=False)
    op.create_index("ix_instances_version_id_created_at", "instances", ["version_id", "created_at"], unique=False)
    op.create_table(
        "placements",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("version_id", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("swap_in_count", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('ABSENT', 'DISK', 'HOST', 'SWAPPING_IN', 'DEVICE', 'EXECUTING')",
            name=op.f("ck_placements_state"),
        ),
        sa.CheckConstraint("size_bytes >= 0 AND swap_in_count >= 0", name=op.f("ck_placements_counts")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.node_id"], name="fk_placements_node_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.version_id"], name="fk_placements_version_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("node_id", "version_id", "device", name="pk_placements"),
    )
    op.create_index("ix_placements_version_id", "placements", ["version_id"], unique=False)


def downgrade() -> None:
    op.drop_constraint("fk_functions_active_version", "functions")
    for table in (
        "placements",
        "instances",
        "versions",
        "node_drops",
        "devices",
        "usage_totals",
        "usage_records",
        "nodes",
        "functions",
        "events",
        "artefacts",
    ):
        op.drop_table(table)
    op.execute(sa.schema.DropSequence(sa.Sequence("routing_generation")))
