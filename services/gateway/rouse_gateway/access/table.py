"""The access table as this gateway uses it: indexed, replaced as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from rouse_cache import Rate
from rouse_contracts import access
from rouse_gateway.access.caller import DEFAULT_TENANT, Caller


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose a key's text is, and until when, seconds since 1970."""

    caller: Caller
    valid_until: float


@dataclass(frozen=True)
class Table:
    """Args:
    generation: -1 before the first table.
    holders: by the digest of the text.
    nobody: who calls where no key is needed: the default tenant, with its quota.
    """

    generation: int = -1
    holders: Mapping[bytes, Holder] = field(default_factory=dict)
    nobody: Caller = field(default_factory=Caller)


def index(table: access.AccessTable) -> Table:
    """An access table as it came, indexed."""
    tenants = {tenant.name: tenant for tenant in table.tenants}
    holders = {
        row.sha256: Holder(_caller(tenants.get(row.tenant), row), _until(row))
        for row in table.keys
        if row.tenant in tenants
    }
    everybody = access.KeyDigest(tenant=DEFAULT_TENANT, role=access.ROLE_ADMIN)
    return Table(table.generation, holders, _caller(tenants.get(DEFAULT_TENANT), everybody))


def _caller(tenant: access.Tenant | None, row: access.KeyDigest) -> Caller:
    if tenant is None:
        return Caller(row.tenant, int(row.role), 1, row.key_id)
    quota = tenant.quota
    rate = Rate(quota.requests_per_second, quota.burst) if quota.requests_per_second > 0 else None
    return Caller(row.tenant, int(row.role), max(1, tenant.weight), row.key_id, rate, quota.max_concurrent_requests)


def _until(row: access.KeyDigest) -> float:
    return row.valid_until.ToNanoseconds() / 1e9 if row.HasField("valid_until") else math.inf
