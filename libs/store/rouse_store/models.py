"""Tables of the control plane.

What is alive (functions, versions, artefacts, nodes, instances, placements) hangs together by foreign keys,
so that deleting a function or a node takes along everything of it. What is a ledger (usage, events) names
functions and versions without referring to them, so that it outlives them.

A version's spec and an artefact's signature are kept as protobuf JSON in one JSONB column each. They are
immutable, written and read as a whole and never searched by a part; so a new field of the contract needs no
migration, and a person still reads them in psql. Everything that a query or a constraint looks at is a
typed column.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Sequence,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, ExcludeConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

FUNCTION_STATES = ("ACTIVE", "DELETING")
NODE_STATES = ("READY", "LOST")
LIVE_STATES = ("PENDING", "STARTING", "READY", "STOPPING")
ENDED_STATES = ("ENDED", "FAILED", "LOST")
RESIDENCY_STATES = ("ABSENT", "DISK", "HOST", "SWAPPING_IN", "DEVICE", "EXECUTING")
FORMATS = ("HUGGING_FACE", "PYTHON", "TORCH_EXPORT")
DEVICE_KINDS = ("host", "cuda")
NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
DIGEST_PATTERN = "[0-9a-f]{64}"
MAX_BYTES = (1 << 63) - 1
# Virtual addresses of models: rouse_policy.addresses says why these.
ADDRESS_BASE, ADDRESS_END, ADDRESS_GRANULE = 0x5000_0000_0000, 0x5500_0000_0000, 32 << 20
ADDRESS_SIZE = "(weights_bytes + state_bytes + scratch_bytes)"
# Made with the schema, and never deleted.
DEFAULT_TENANT = "default"


def one_of(column: str, values: tuple[str, ...]) -> str:
    """SQL of a check that a column holds one of some words."""
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


def is_live() -> str:
    """SQL condition of an instance that has not ended."""
    return one_of("state", LIVE_STATES)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it from the class
        str: Text,
        datetime: DateTime(timezone=True),
        float: Double,
        dict[str, Any]: JSONB,
    }


# Generations of the routing table: a sequence never goes back, neither over restarts of the service nor
# when clocks are set, and gaps do no harm.
ROUTING_GENERATION = Sequence("routing_generation", metadata=Base.metadata)


class Artefact(Base):
    """What model-repository told of an artefact that some version uses."""

    __tablename__ = "artefacts"
    __table_args__ = (
        CheckConstraint(f"digest ~ '^{DIGEST_PATTERN}$'", name="digest"),
        CheckConstraint(one_of("format", FORMATS), name="format"),
        CheckConstraint("artefact_bytes >= 0 AND weights_bytes >= 0", name="bytes"),
    )

    digest: Mapped[str] = mapped_column(primary_key=True)
    format: Mapped[str]
    artefact_bytes: Mapped[int] = mapped_column(BigInteger)
    weights_bytes: Mapped[int] = mapped_column(BigInteger)
    architecture: Mapped[str]
    # As the files tell it; empty where they do not.
    signature: Mapped[dict[str, Any]]
    # Its last function is being deleted: no new version may use it.
    deleting: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    created_at: Mapped[datetime]

    addresses: Mapped[AddressRange | None] = relationship(lazy="raise", passive_deletes="all")


class AddressRange(Base):
    """The virtual addresses of an artefact, the same on every node as long as it exists. No two overlap."""

    __tablename__ = "address_ranges"
    __table_args__ = (
        CheckConstraint("weights_bytes >= 0 AND state_bytes >= 0 AND scratch_bytes >= 0", name="bytes"),
        CheckConstraint(f"{ADDRESS_SIZE} > 0", name="size"),
        CheckConstraint(f"base >= {ADDRESS_BASE} AND base + {ADDRESS_SIZE} <= {ADDRESS_END}", name="bounds"),
        CheckConstraint(
            f"base % {ADDRESS_GRANULE} = 0 AND weights_bytes % {ADDRESS_GRANULE} = 0 "
            f"AND state_bytes % {ADDRESS_GRANULE} = 0 AND scratch_bytes % {ADDRESS_GRANULE} = 0",
            name="alignment",
        ),
        ExcludeConstraint((text(f"int8range(base, base + {ADDRESS_SIZE})"), "&&"), name="no_overlap"),
    )

    artefact_digest: Mapped[str] = mapped_column(ForeignKey("artefacts.digest", ondelete="CASCADE"), primary_key=True)
    base: Mapped[int] = mapped_column(BigInteger)
    weights_bytes: Mapped[int] = mapped_column(BigInteger)
    state_bytes: Mapped[int] = mapped_column(BigInteger)
    scratch_bytes: Mapped[int] = mapped_column(BigInteger)

    @property
    def size_bytes(self) -> int:
        return self.weights_bytes + self.state_bytes + self.scratch_bytes


class Function(Base):
    """A function. It always has exactly one active version: the foreign key is checked at commit.

    Shares of the traffic are percentages by number of the version; they are read and written as a whole.
    """

    __tablename__ = "functions"
    __table_args__ = (
        CheckConstraint(f"name ~ '^{NAME_PATTERN}$'", name="name"),
        CheckConstraint(one_of("state", FUNCTION_STATES), name="state"),
        UniqueConstraint("name"),
        Index(None, "tenant"),
        ForeignKeyConstraint(
            ["function_id", "active_version"],
            ["versions.function_id", "versions.version"],
            name="fk_functions_active_version",
            deferrable=True,
            initially="DEFERRED",
            use_alter=True,
        ),
    )

    function_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    state: Mapped[str]
    active_version: Mapped[int] = mapped_column(Integer)
    # Empty: all to the active version.
    traffic: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    # What the last change of it replaced; none where there is nothing to roll back to.
    previous_traffic: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    # Who deployed it first; see rouse_store.models_access.
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name"), server_default=DEFAULT_TENANT)
    created_at: Mapped[datetime]
    since: Mapped[datetime]

    versions: Mapped[list[Version]] = relationship(
        back_populates="function",
        order_by="Version.version",
        primaryjoin="Function.function_id == Version.function_id",
        foreign_keys="Version.function_id",
        lazy="raise",
        passive_deletes="all",
    )

    @property
    def active(self) -> Version:
        """The active version, of a function that was read with its versions."""
        return next(version for version in self.versions if version.version == self.active_version)


class Version(Base):
    """One immutable version of a function. `spec` has its defaults filled in and its effective signature."""

    __tablename__ = "versions"
    __table_args__ = (
        CheckConstraint("version > 0", name="version"),
        UniqueConstraint("function_id", "version"),
        Index(None, "artefact_digest"),
        Index(None, "function_id", "deployment_id", unique=True, postgresql_where=text("deployment_id <> ''")),
    )

    version_id: Mapped[str] = mapped_column(primary_key=True)
    function_id: Mapped[str] = mapped_column(ForeignKey("functions.function_id", ondelete="CASCADE"))
    version: Mapped[int] = mapped_column(Integer)
    artefact_digest: Mapped[str] = mapped_column(ForeignKey("artefacts.digest"))
    # The client's name of the deployment that made it; empty where it had none.
    deployment_id: Mapped[str] = mapped_column(server_default="")
    spec: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]

    function: Mapped[Function] = relationship(
        back_populates="versions",
        primaryjoin="Function.function_id == Version.function_id",
        foreign_keys="Version.function_id",
        lazy="raise",
    )
    artefact: Mapped[Artefact] = relationship(lazy="raise")


class Node(Base):
    """A node as its coordinator registered it."""

    __tablename__ = "nodes"
    __table_args__ = (CheckConstraint(one_of("state", NODE_STATES), name="state"),)

    node_id: Mapped[str] = mapped_column(primary_key=True)
    incarnation: Mapped[str]
    router_address: Mapped[str]
    link_address: Mapped[str]
    device_address: Mapped[str]
    coordinator_address: Mapped[str]
    state: Mapped[str]
    registered_at: Mapped[datetime]
    # As of the last change that was written; the newest one is in the service's memory.
    last_heartbeat: Mapped[datetime]
    since: Mapped[datetime]

    devices: Mapped[list[Device]] = relationship(
        order_by="Device.position", cascade="all, delete-orphan", passive_deletes=True, lazy="raise"
    )


class Device(Base):
    """A device of a node."""

    __tablename__ = "devices"
    __table_args__ = (
        CheckConstraint(one_of("kind", DEVICE_KINDS), name="kind"),
        CheckConstraint("capacity_bytes > 0", name="capacity"),
    )

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.node_id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    capacity_bytes: Mapped[int] = mapped_column(BigInteger)
    position: Mapped[int] = mapped_column(Integer)


class Placement(Base):
    """Where a version was on a node when the node's report last changed."""

    __tablename__ = "placements"
    __table_args__ = (
        CheckConstraint(one_of("state", RESIDENCY_STATES), name="state"),
        CheckConstraint("size_bytes >= 0 AND swap_in_count >= 0", name="counts"),
        Index(None, "version_id"),
    )

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.node_id", ondelete="CASCADE"), primary_key=True)
    version_id: Mapped[str] = mapped_column(ForeignKey("versions.version_id", ondelete="CASCADE"), primary_key=True)
    # Empty unless it is on a device.
    device: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    reason: Mapped[str]
    swap_in_count: Mapped[int] = mapped_column(BigInteger)
    since: Mapped[datetime]
    tapes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    replays: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    # Why requests were not recorded; empty where they were.
    eager_reason: Mapped[str] = mapped_column(server_default=text("''"))
    # Whether a swap slows its requests down much, and what was measured.
    heavy: Mapped[bool] = mapped_column(server_default=text("false"))
    heaviness: Mapped[str] = mapped_column(server_default=text("''"))
    # The most that it was seen to hold beside its weights; 0 before it was measured.
    measured_working_bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))


class NodeDrop(Base):
    """An order to a node to give back a version that the control plane does not have any more.

    Without a foreign key to the version: it stays until the node, which may be away, has carried it out.
    """

    __tablename__ = "node_drops"

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.node_id", ondelete="CASCADE"), primary_key=True)
    version_id: Mapped[str] = mapped_column(primary_key=True)
    # Empty where a node reported a version that is not known.
    artefact_digest: Mapped[str]
    function: Mapped[str]
    ordered_at: Mapped[datetime]


class Instance(Base):
    """One instance of a version on a node."""

    __tablename__ = "instances"
    __table_args__ = (
        CheckConstraint(one_of("state", LIVE_STATES + ENDED_STATES), name="state"),
        Index("ix_instances_live_node", "node_id", postgresql_where=text(is_live())),
        Index(None, "version_id", "created_at"),
        Index(None, "node_id"),
    )

    instance_id: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[str] = mapped_column(ForeignKey("versions.version_id", ondelete="CASCADE"))
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.node_id", ondelete="CASCADE"))
    # The node's incarnation that it was placed on; it ends with it.
    node_incarnation: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    created_at: Mapped[datetime]
    since: Mapped[datetime]
    # When it first became READY; an instance that failed without it is a failed start.
    ready_at: Mapped[datetime | None]
    # What keeps its code apart from the machine, in words; empty until it says so.
    isolation: Mapped[str] = mapped_column(server_default=text("''"), default="")

    version: Mapped[Version] = relationship(lazy="raise")


class UsageRecord(Base):
    """One request as it was served. Kept for a while so that a record that comes twice counts once."""

    __tablename__ = "usage_records"
    __table_args__ = (
        CheckConstraint("device_ms >= 0 AND swap_ms >= 0 AND queue_ms >= 0", name="durations"),
        Index(None, "recorded_at"),
    )

    request_id: Mapped[str] = mapped_column(primary_key=True)
    function: Mapped[str]
    version_id: Mapped[str]
    tenant: Mapped[str] = mapped_column(server_default=text("''"))
    node_id: Mapped[str]
    device: Mapped[str]
    finished_at: Mapped[datetime]
    recorded_at: Mapped[datetime]
    device_ms: Mapped[float]
    swap_ms: Mapped[float]
    queue_ms: Mapped[float]
    status_code: Mapped[int] = mapped_column(Integer)
    swapped_in: Mapped[bool] = mapped_column(Boolean)


class UsageTotal(Base):
    """What a tenant's requests to a function used in all, a row a version: a function made anew under an old
    name starts at zero, and the bill of the old one stays."""

    __tablename__ = "usage_totals"

    function: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True, server_default=text("''"))
    requests: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)
    device_ms: Mapped[float]
    swap_ins: Mapped[int] = mapped_column(BigInteger)
    swap_ms: Mapped[float]
    # Time in the host memory of nodes, and times bytes.
    host_ms: Mapped[float] = mapped_column(server_default=text("0"))
    host_byte_s: Mapped[float] = mapped_column(server_default=text("0"))


class UsageHour(Base):
    """The same as UsageTotal within one hour, for bills of a period."""

    __tablename__ = "usage_hours"

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    function: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    failures: Mapped[int] = mapped_column(BigInteger)
    device_ms: Mapped[float]
    swap_ins: Mapped[int] = mapped_column(BigInteger)
    swap_ms: Mapped[float]
    host_ms: Mapped[float]
    host_byte_s: Mapped[float]


class Event(Base):
    """Something that happened."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "subject", "event_id"),)

    event_id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime]
    kind: Mapped[str]
    subject: Mapped[str]
    message: Mapped[str]
