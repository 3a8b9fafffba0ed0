"""The RPCs of rouse.access.v1 as cluster-manager serves them to gateways, which check who calls."""

from __future__ import annotations

from typing import TypeAlias

import grpc

from rouse_cluster_manager.access.keys import Keys
from rouse_cluster_manager.access.secrets import Secrets
from rouse_cluster_manager.access.tenants import Tenants
from rouse_cluster_manager.publisher import AccessPublisher
from rouse_cluster_manager.supervisor import Gate
from rouse_contracts import access

Context: TypeAlias = grpc.aio.ServicerContext


class AccessService(access.AccessServiceServicer):
    """See proto/rouse/access/v1/access.proto. Every RPC: UNAVAILABLE DATABASE_DOWN | STANDBY."""

    def __init__(self, gate: Gate, tenants: Tenants, keys: Keys, secrets: Secrets, table: AccessPublisher) -> None:
        self._gate, self._tenants, self._keys, self._secrets, self._table = gate, tenants, keys, secrets, table

    async def PutTenant(self, request: access.PutTenantRequest, context: Context) -> access.PutTenantResponse:
        self._gate.check()
        return access.PutTenantResponse(tenant=await self._tenants.put(request.tenant))

    async def ListTenants(self, request: access.ListTenantsRequest, context: Context) -> access.ListTenantsResponse:
        self._gate.check()
        return access.ListTenantsResponse(tenants=await self._tenants.listed())

    async def DeleteTenant(self, request: access.DeleteTenantRequest, context: Context) -> access.DeleteTenantResponse:
        self._gate.check()
        await self._tenants.delete(request.name)
        return access.DeleteTenantResponse()

    async def CreateKey(self, request: access.CreateKeyRequest, context: Context) -> access.CreateKeyResponse:
        self._gate.check()
        key, text = await self._keys.create(request)
        return access.CreateKeyResponse(key=key, text=text)

    async def ListKeys(self, request: access.ListKeysRequest, context: Context) -> access.ListKeysResponse:
        self._gate.check()
        return access.ListKeysResponse(keys=await self._keys.listed(request.tenant))

    async def RotateKey(self, request: access.RotateKeyRequest, context: Context) -> access.RotateKeyResponse:
        self._gate.check()
        key, text = await self._keys.rotate(request.key_id, request.grace.ToNanoseconds() / 1e9)
        return access.RotateKeyResponse(key=key, text=text)

    async def RevokeKey(self, request: access.RevokeKeyRequest, context: Context) -> access.RevokeKeyResponse:
        self._gate.check()
        await self._keys.revoke(request.key_id)
        return access.RevokeKeyResponse()

    async def PutSecret(self, request: access.PutSecretRequest, context: Context) -> access.PutSecretResponse:
        self._gate.check()
        await self._secrets.put(request.tenant, request.name, request.value)
        return access.PutSecretResponse()

    async def ListSecrets(self, request: access.ListSecretsRequest, context: Context) -> access.ListSecretsResponse:
        self._gate.check()
        return access.ListSecretsResponse(secrets=await self._secrets.listed(request.tenant))

    async def DeleteSecret(self, request: access.DeleteSecretRequest, context: Context) -> access.DeleteSecretResponse:
        self._gate.check()
        await self._secrets.delete(request.tenant, request.name)
        return access.DeleteSecretResponse()

    async def GetAccessTable(
        self, request: access.GetAccessTableRequest, context: Context
    ) -> access.GetAccessTableResponse:
        self._gate.check()
        return access.GetAccessTableResponse(table=await self._table.table())
