"""Tables of who may do what: tenants, their keys and their secrets.

Of a key the digests of its texts are kept, of a secret its ciphertext: whoever reads the database can neither
call the mesh nor learn a secret.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, LargeBinary, Sequence, text
from sqlalchemy.orm import Mapped, mapped_column

from rouse_store.models import NAME_PATTERN, Base, one_of

ROLES = ("INVOKE", "DEPLOY", "ADMIN")
TENANT_PATTERN = "[a-z0-9][a-z0-9-]{0,62}"
DIGEST_BYTES = 32
MAX_WEIGHT = 1000

# Generations of the access table, as those of the routing table.
ACCESS_GENERATION = Sequence("access_generation", metadata=Base.metadata)


class Tenant(Base):
    """Who owns functions, keys and secrets, and what it may use; 0 is no limit."""

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint(f"name ~ '^{TENANT_PATTERN}$'", name="name"),
        CheckConstraint("requests_per_second >= 0 AND burst >= 0 AND max_concurrent_requests >= 0", name="quota"),
        CheckConstraint(f"weight BETWEEN 1 AND {MAX_WEIGHT}", name="weight"),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    requests_per_second: Mapped[float] = mapped_column(server_default=text("0"))
    burst: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    max_concurrent_requests: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    weight: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    created_at: Mapped[datetime]


class Key(Base):
    """An API key. It has two texts for a while after it was rotated: the one before is valid until a time."""

    __tablename__ = "keys"
    __table_args__ = (
        CheckConstraint(one_of("role", ROLES), name="role"),
        CheckConstraint(f"octet_length(digest) = {DIGEST_BYTES}", name="digest"),
        CheckConstraint("(previous_digest IS NULL) = (previous_until IS NULL)", name="previous"),
        Index(None, "digest", unique=True),
        Index(None, "tenant"),
    )

    key_id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name", ondelete="CASCADE"))
    role: Mapped[str]
    description: Mapped[str]
    # sha256 of the text, which is random.
    digest: Mapped[bytes] = mapped_column(LargeBinary)
    previous_digest: Mapped[bytes | None] = mapped_column(LargeBinary)
    previous_until: Mapped[datetime | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Secret(Base):
    """A secret of a tenant, encrypted with a key that the database does not have."""

    __tablename__ = "secrets"
    __table_args__ = (CheckConstraint(f"name ~ '^{NAME_PATTERN}$'", name="name"),)

    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.name", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    ciphertext: Mapped[bytes] = mapped_column(LargeBinary)
    changed_at: Mapped[datetime]
