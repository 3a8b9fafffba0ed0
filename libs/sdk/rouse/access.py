"""Tenants, API keys and secrets: who may do what, for administrators and those who deploy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rouse.convert import duration, time
from rouse.errors import InvalidArgument
from rouse.transport import Transport, finish
from rouse_contracts import access as contract

ROLES: Mapping[str, contract.Role] = {
    "invoke": contract.ROLE_INVOKE,
    "deploy": contract.ROLE_DEPLOY,
    "admin": contract.ROLE_ADMIN,
}
_ROLE_NAMES = {role: name for name, role in ROLES.items()}


@dataclass(frozen=True)
class Tenant:
    """Who owns functions, keys and secrets, and what it may use; 0 is no limit.

    Attributes:
        requests_per_second, burst: over time, and at once.
        max_concurrent_requests: in flight in the whole mesh.
        weight: its share of a contended queue beside other tenants.
    """

    name: str
    requests_per_second: float = 0.0
    burst: int = 0
    max_concurrent_requests: int = 0
    weight: int = 1
    created_at: datetime | None = None


@dataclass(frozen=True)
class Key:
    """An API key, without its text. `role` is invoke, deploy or admin."""

    key_id: str
    tenant: str
    role: str
    description: str
    created_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True)
class NewKey:
    """A key and its text, which is shown this once."""

    key: Key
    text: str = field(repr=False)


@dataclass(frozen=True)
class Secret:
    """A secret's name; its value is told to nobody but the functions that refer to it."""

    name: str
    changed_at: datetime | None


class AsyncAccess:
    """Of an `AsyncClient`, as `client.access`. Every method raises RouseError."""

    def __init__(self, transport: Transport, timeout_s: float) -> None:
        self._transport, self._timeout_s = transport, timeout_s

    async def tenants(self) -> list[Tenant]:
        """All tenants in the order of their names."""
        answer = await self._ask("ListTenants", contract.ListTenantsRequest())
        return [_tenant(row) for row in answer.tenants]

    async def set_tenant(
        self,
        name: str,
        *,
        requests_per_second: float | None = None,
        burst: int | None = None,
        max_concurrent_requests: int | None = None,
        weight: int | None = None,
    ) -> Tenant:
        """Makes a tenant, or changes what is given of one; 0 is no limit."""
        known = {tenant.name: tenant for tenant in await self.tenants()}
        before = known.get(name, Tenant(name))

        def either(given: Any, kept: Any) -> Any:
            return kept if given is None else given

        quota = contract.Quota(
            requests_per_second=either(requests_per_second, before.requests_per_second),
            burst=either(burst, 0 if requests_per_second == 0 else before.burst),
            max_concurrent_requests=either(max_concurrent_requests, before.max_concurrent_requests),
        )
        wanted = contract.Tenant(name=name, quota=quota, weight=either(weight, before.weight))
        return _tenant((await self._ask("PutTenant", contract.PutTenantRequest(tenant=wanted))).tenant)

    async def delete_tenant(self, name: str) -> None:
        """Deletes a tenant that has no functions, with its keys and secrets."""
        await self._ask("DeleteTenant", contract.DeleteTenantRequest(name=name))

    async def keys(self, tenant: str = "") -> list[Key]:
        """Keys of a tenant, or of all, oldest first."""
        return [_key(row) for row in (await self._ask("ListKeys", contract.ListKeysRequest(tenant=tenant))).keys]

    async def create_key(
        self, tenant: str, role: str = "invoke", *, description: str = "", lifetime_s: float | None = None
    ) -> NewKey:
        """Makes a key with the role invoke, deploy or admin, which ends after `lifetime_s` where that is given."""
        if role not in ROLES:
            raise InvalidArgument(f"role '{role}': want one of {', '.join(ROLES)}", reason="BAD_ROLE")
        request = contract.CreateKeyRequest(tenant=tenant, role=ROLES[role], description=description)
        if lifetime_s is not None:
            request.lifetime.CopyFrom(duration(lifetime_s))
        return _new_key(await self._ask("CreateKey", request))

    async def rotate_key(self, key_id: str, *, grace_s: float = 0.0) -> NewKey:
        """Makes a new text for a key; the old one holds for `grace_s` more."""
        return _new_key(await self._ask("RotateKey", contract.RotateKeyRequest(key_id=key_id, grace=duration(grace_s))))

    async def revoke_key(self, key_id: str) -> None:
        """The key is refused from now on."""
        await self._ask("RevokeKey", contract.RevokeKeyRequest(key_id=key_id))

    async def secrets(self, tenant: str = "") -> list[Secret]:
        """Names of the tenant's secrets. Administrators may name another tenant than their own."""
        answer = await self._ask("ListSecrets", contract.ListSecretsRequest(tenant=tenant))
        return [Secret(row.name, time(row, "changed_at")) for row in answer.secrets]

    async def set_secret(self, name: str, value: str, *, tenant: str = "") -> None:
        """Keeps a secret, encrypted; instances that start from now on get the new value."""
        await self._ask("PutSecret", contract.PutSecretRequest(name=name, value=value, tenant=tenant))

    async def delete_secret(self, name: str, *, tenant: str = "") -> None:
        """Deletes a secret that no version refers to."""
        await self._ask("DeleteSecret", contract.DeleteSecretRequest(name=name, tenant=tenant))

    async def _ask(self, method: str, request: Any) -> Any:
        return await self._transport.unary(method, request, self._timeout_s)


class Access:
    """As `AsyncAccess`, blocking: of a `Client`, as `client.access`."""

    def __init__(self, access: AsyncAccess) -> None:
        self._access = access

    def tenants(self) -> list[Tenant]:
        return finish(self._access.tenants())

    def set_tenant(
        self,
        name: str,
        *,
        requests_per_second: float | None = None,
        burst: int | None = None,
        max_concurrent_requests: int | None = None,
        weight: int | None = None,
    ) -> Tenant:
        return finish(
            self._access.set_tenant(
                name,
                requests_per_second=requests_per_second,
                burst=burst,
                max_concurrent_requests=max_concurrent_requests,
                weight=weight,
            )
        )

    def delete_tenant(self, name: str) -> None:
        finish(self._access.delete_tenant(name))

    def keys(self, tenant: str = "") -> list[Key]:
        return finish(self._access.keys(tenant))

    def create_key(
        self, tenant: str, role: str = "invoke", *, description: str = "", lifetime_s: float | None = None
    ) -> NewKey:
        return finish(self._access.create_key(tenant, role, description=description, lifetime_s=lifetime_s))

    def rotate_key(self, key_id: str, *, grace_s: float = 0.0) -> NewKey:
        return finish(self._access.rotate_key(key_id, grace_s=grace_s))

    def revoke_key(self, key_id: str) -> None:
        finish(self._access.revoke_key(key_id))

    def secrets(self, tenant: str = "") -> list[Secret]:
        return finish(self._access.secrets(tenant))

    def set_secret(self, name: str, value: str, *, tenant: str = "") -> None:
        finish(self._access.set_secret(name, value, tenant=tenant))

    def delete_secret(self, name: str, *, tenant: str = "") -> None:
        finish(self._access.delete_secret(name, tenant=tenant))


def _tenant(row: contract.Tenant) -> Tenant:
    quota = row.quota
    return Tenant(
        row.name,
        quota.requests_per_second,
        quota.burst,
        quota.max_concurrent_requests,
        row.weight,
        time(row, "created_at"),
    )


def _key(row: contract.Key) -> Key:
    return Key(
        row.key_id,
        row.tenant,
        _ROLE_NAMES.get(row.role, "unknown"),
        row.description,
        *(time(row, name) for name in ("created_at", "expires_at", "revoked_at")),
    )


def _new_key(answer: Any) -> NewKey:
    return NewKey(_key(answer.key), answer.text)
