"""rouse.access.v1.AccessService as administrators call it: checked here, kept by cluster-manager."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

import grpc

from rouse_common.errors import Unimplemented
from rouse_common.rpc import Channels, call, remaining_s
from rouse_contracts import access
from rouse_gateway.access.caller import current
from rouse_gateway.access.feed import AccessFeed

Context: TypeAlias = grpc.aio.ServicerContext
T = TypeVar("T")


class AccessService(access.AccessServiceServicer):
    """Args:
    feed: told after every change, so that it holds at once for requests through this gateway.
    default_timeout_s: time for a request that sets no deadline.
    """

    def __init__(self, channels: Channels, address: str, feed: AccessFeed, default_timeout_s: float) -> None:
        self._stub: Any = access.AccessServiceStub(channels.get(address))
        self._feed = feed
        self._default_timeout_s = default_timeout_s

    async def _ask(self, kind: type[T], method: str, request: Any, context: Context) -> T:
        timeout_s = remaining_s(context, self._default_timeout_s)
        answer = await call(getattr(self._stub, method), request, timeout_s=timeout_s)
        assert isinstance(answer, kind)
        return answer

    async def _change(self, kind: type[T], method: str, request: Any, context: Context) -> T:
        answer = await self._ask(kind, method, request, context)
        await self._feed.refresh()
        return answer

    async def PutTenant(self, request: access.PutTenantRequest, context: Context) -> access.PutTenantResponse:
        return await self._change(access.PutTenantResponse, "PutTenant", request, context)

    async def ListTenants(self, request: access.ListTenantsRequest, context: Context) -> access.ListTenantsResponse:
        return await self._ask(access.ListTenantsResponse, "ListTenants", request, context)

    async def DeleteTenant(self, request: access.DeleteTenantRequest, context: Context) -> access.DeleteTenantResponse:
        return await self._change(access.DeleteTenantResponse, "DeleteTenant", request, context)

    async def CreateKey(self, request: access.CreateKeyRequest, context: Context) -> access.CreateKeyResponse:
        return await self._change(access.CreateKeyResponse, "CreateKey", request, context)

    async def ListKeys(self, request: access.ListKeysRequest, context: Context) -> access.ListKeysResponse:
        return await self._ask(access.ListKeysResponse, "ListKeys", request, context)

    async def RotateKey(self, request: access.RotateKeyRequest, context: Context) -> access.RotateKeyResponse:
        return await self._change(access.RotateKeyResponse, "RotateKey", request, context)

    async def RevokeKey(self, request: access.RevokeKeyRequest, context: Context) -> access.RevokeKeyResponse:
        return await self._change(access.RevokeKeyResponse, "RevokeKey", request, context)

    async def PutSecret(self, request: access.PutSecretRequest, context: Context) -> access.PutSecretResponse:
        request.tenant = _tenant(request.tenant)
        return await self._ask(access.PutSecretResponse, "PutSecret", request, context)

    async def ListSecrets(self, request: access.ListSecretsRequest, context: Context) -> access.ListSecretsResponse:
        request.tenant = _tenant(request.tenant)
        return await self._ask(access.ListSecretsResponse, "ListSecrets", request, context)

    async def DeleteSecret(self, request: access.DeleteSecretRequest, context: Context) -> access.DeleteSecretResponse:
        request.tenant = _tenant(request.tenant)
        return await self._ask(access.DeleteSecretResponse, "DeleteSecret", request, context)

    async def GetAccessTable(
        self, request: access.GetAccessTableRequest, context: Context
    ) -> access.GetAccessTableResponse:
        raise Unimplemented("NOT_SERVED", "GetAccessTable is for gateways; call ListKeys and ListTenants")


def _tenant(asked: str) -> str:
    """Whose secrets: the caller's own; an administrator may name another tenant."""
    caller = current()
    return asked if asked and caller.sees_all else caller.tenant
