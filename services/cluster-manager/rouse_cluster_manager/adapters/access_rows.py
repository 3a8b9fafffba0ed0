"""Rows of tenants, keys and secrets as messages of the contract."""

from __future__ import annotations

from rouse_cluster_manager.adapters.rows import timestamp
from rouse_contracts import access
from rouse_store.models_access import Key, Tenant
from rouse_store.models_access import Secret as SecretRow

__all__ = ["SecretRow", "key_message", "quota", "secret_message", "tenant_message"]


def tenant_message(row: Tenant) -> access.Tenant:
    return access.Tenant(
        name=row.name,
        quota=access.Quota(
            requests_per_second=row.requests_per_second,
            burst=row.burst,
            max_concurrent_requests=row.max_concurrent_requests,
        ),
        weight=row.weight,
        created_at=timestamp(row.created_at),
    )


def quota(row: Tenant) -> str:
    """A tenant's quota in words."""
    rate = f"{row.requests_per_second:g} requests a second, burst {row.burst or 'as the rate'}"
    return (
        f"{rate if row.requests_per_second else 'any number of requests a second'}; "
        f"{row.max_concurrent_requests or 'any number'} at once; weight {row.weight}"
    )


def key_message(row: Key) -> access.Key:
    """A key without anything of its texts."""
    return access.Key(
        key_id=row.key_id,
        tenant=row.tenant,
        role=f"ROLE_{row.role}",
        description=row.description,
        created_at=timestamp(row.created_at),
        expires_at=None if row.expires_at is None else timestamp(row.expires_at),
        revoked_at=None if row.revoked_at is None else timestamp(row.revoked_at),
    )


def secret_message(row: SecretRow) -> access.Secret:
    return access.Secret(name=row.name, changed_at=timestamp(row.changed_at))
