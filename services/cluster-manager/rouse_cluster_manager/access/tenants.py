"""Tenants and what they may use."""

from __future__ import annotations

import logging

from rouse_cluster_manager.access import rules
from rouse_cluster_manager.adapters import access_rows
from rouse_cluster_manager.state import at
from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition
from rouse_contracts import access
from rouse_store import Database, Unit
from rouse_store.models import DEFAULT_TENANT
from rouse_store.models_access import Tenant
from rouse_store.text import clean

LOG = logging.getLogger(__name__)
SHOWN_FUNCTIONS = 5


def subject(tenant: str) -> str:
    """What events of a tenant are about; no function has a '/' in its name."""
    return f"tenant/{tenant}"


class Tenants:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    async def put(self, wanted: access.Tenant) -> access.Tenant:
        """Creates a tenant or replaces its quota and weight. Raises InvalidArgument, FailedPrecondition TOO_MANY."""
        rules.check_tenant_name(wanted.name)
        rules.check_quota(wanted)
        now = at(self._clock.now())

        def work(unit: Unit) -> access.Tenant:
            row = unit.access.tenant(wanted.name, lock=True)
            made = row is None
            if row is None:
                if unit.access.count_tenants() >= rules.MAX_TENANTS:
                    raise rules.too_many("tenants", rules.MAX_TENANTS)
                row = Tenant(name=wanted.name, created_at=now)
                unit.access.add(row)
            row.requests_per_second = wanted.quota.requests_per_second
            row.burst = wanted.quota.burst
            row.max_concurrent_requests = wanted.quota.max_concurrent_requests
            row.weight = wanted.weight or 1
            unit.access_changed = True
            unit.record(now, "tenant.created" if made else "tenant.changed", subject(row.name), access_rows.quota(row))
            return access_rows.tenant_message(row)

        answer = await self._database.run(work)
        LOG.info("tenant set tenant=%s", wanted.name)
        return answer

    async def listed(self) -> list[access.Tenant]:
        return await self._database.run(lambda unit: [access_rows.tenant_message(row) for row in unit.access.tenants()])

    async def delete(self, name: str) -> None:
        """Deletes a tenant with its keys and secrets. Raises NotFound TENANT_NOT_FOUND, FailedPrecondition
        TENANT_IN_USE."""
        now = at(self._clock.now())

        def work(unit: Unit) -> None:
            if unit.access.tenant(clean(name), lock=True) is None:
                raise rules.no_tenant(name)
            if name == DEFAULT_TENANT:
                raise FailedPrecondition(
                    "TENANT_IN_USE", f"tenant '{name}' came with the mesh and stays; revoke its keys", tenant=name
                )
            used = unit.access.functions_of(name)
            if used:
                shown = ", ".join(used[:SHOWN_FUNCTIONS]) + (", …" if len(used) > SHOWN_FUNCTIONS else "")
                raise FailedPrecondition(
                    "TENANT_IN_USE", f"tenant '{name}' has functions: {shown}; delete them first", tenant=name
                )
            unit.access.delete_tenant(name)
            unit.access_changed = True
            unit.record(now, "tenant.deleted", subject(name), "with its keys and secrets")

        await self._database.run(work)
        LOG.info("tenant deleted tenant=%s", name)
