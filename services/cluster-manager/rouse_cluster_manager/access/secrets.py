"""Secrets: kept encrypted, handed out to nobody but the node that starts an instance of a function."""

from __future__ import annotations

import logging

from rouse_cluster_manager.access import rules
from rouse_cluster_manager.access.tenants import subject
from rouse_cluster_manager.access.vault import Vault
from rouse_cluster_manager.adapters import access_rows
from rouse_cluster_manager.state import at
from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, NotFound
from rouse_contracts import access, functions
from rouse_store import Database, Unit
from rouse_store.models import DEFAULT_TENANT
from rouse_store.text import clean

LOG = logging.getLogger(__name__)


class Secrets:
    def __init__(self, database: Database, vault: Vault, clock: Clock) -> None:
        self._database, self._vault, self._clock = database, vault, clock

    async def put(self, tenant: str, name: str, value: str) -> None:
        """Raises InvalidArgument BAD_NAME | BAD_SECRET, NotFound TENANT_NOT_FOUND, FailedPrecondition
        NO_SECRET_KEY | TOO_MANY."""
        tenant = tenant or DEFAULT_TENANT
        rules.check_secret(name, value)
        sealed, now = self._vault.seal(tenant, name, value), at(self._clock.now())

        def work(unit: Unit) -> None:
            if unit.access.hold_tenant(clean(tenant)) is None:
                raise rules.no_tenant(tenant)
            if not unit.access.lock_secret(tenant, name) and unit.access.count_secrets(tenant) >= rules.MAX_SECRETS:
                raise rules.too_many(f"secrets of tenant '{tenant}'", rules.MAX_SECRETS)
            unit.access.put_secret(tenant, name, sealed, now)
            unit.record(now, "secret.set", subject(tenant), f"secret {name}; running instances keep the value before")

        await self._database.run(work)
        LOG.info("secret set tenant=%s secret=%s", tenant, name)

    async def listed(self, tenant: str) -> list[access.Secret]:
        """Names and times, never values."""
        rows = await self._database.run(lambda unit: unit.access.secrets(clean(tenant or DEFAULT_TENANT)))
        return [access_rows.secret_message(row) for row in rows]

    async def delete(self, tenant: str, name: str) -> None:
        """Raises NotFound SECRET_NOT_FOUND, FailedPrecondition SECRET_IN_USE."""
        tenant, now = tenant or DEFAULT_TENANT, at(self._clock.now())

        def work(unit: Unit) -> None:
            if not unit.access.lock_secret(clean(tenant), clean(name)):
                raise NotFound(
                    "SECRET_NOT_FOUND",
                    f"tenant '{clean(tenant, 80)}' has no secret '{clean(name, 140)}'; `rouse secrets list` lists them",
                    secret=name[:140],
                )
            used = unit.access.users_of_secret(tenant, name)
            if used:
                raise FailedPrecondition(
                    "SECRET_IN_USE", f"secret '{name}' is used by versions of function '{used[0]}'; delete it first",
                    secret=name, function=used[0],
                )  # fmt: skip
            unit.access.delete_secret(tenant, name)
            unit.record(now, "secret.deleted", subject(tenant), f"secret {name}")

        await self._database.run(work)
        LOG.info("secret deleted tenant=%s secret=%s", tenant, name)

    def resolve(self, unit: Unit, tenant: str, spec: functions.FunctionSpec) -> dict[str, str]:
        """Values by environment variable of what a spec refers to. Raises FailedPrecondition SECRET_NOT_FOUND |
        NO_SECRET_KEY."""
        rows = {row.name: row.ciphertext for row in check_references(unit, tenant, spec)}
        return {
            reference.variable: self._vault.unseal(tenant, reference.secret, rows[reference.secret])
            for reference in spec.secrets
        }


def check_references(unit: Unit, tenant: str, spec: functions.FunctionSpec) -> list[access_rows.SecretRow]:
    """The secrets that a spec refers to. Raises FailedPrecondition SECRET_NOT_FOUND."""
    if not spec.secrets:
        return []
    wanted = {clean(reference.secret) for reference in spec.secrets}
    rows = unit.access.secrets(tenant, wanted)
    missing = sorted(wanted - {row.name for row in rows})
    if missing:
        raise FailedPrecondition(
            "SECRET_NOT_FOUND",
            f"function '{spec.name}' refers to the secret '{missing[0][:140]}', which tenant '{tenant}' does not have; "
            f"set it with `rouse secrets set {missing[0][:140]}`",
            function=spec.name, secret=missing[0][:140], tenant=tenant,
        )  # fmt: skip
    return rows
