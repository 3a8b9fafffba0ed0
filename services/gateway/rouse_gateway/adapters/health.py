"""Asks services of the mesh for their health."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from grpc_health.v1 import health_pb2, health_pb2_grpc

from rouse_common.errors import RouseError
from rouse_common.rpc import Channels, call

TIMEOUT_S = 1.0
UNREACHABLE = "UNREACHABLE"


async def check(channels: Channels, address: str) -> str:
    """SERVING, NOT_SERVING or UNREACHABLE; answers within TIMEOUT_S."""
    stub = health_pb2_grpc.HealthStub(channels.get(address))
    try:
        answer = await call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=TIMEOUT_S)
    except RouseError:
        return UNREACHABLE
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return "SERVING" if serving else "NOT_SERVING"


async def check_all(channels: Channels, addresses: Mapping[str, str]) -> dict[str, str]:
    """The health of every service by name, asked for at once."""
    states = await asyncio.gather(*(check(channels, address) for address in addresses.values()))
    return dict(zip(addresses, states, strict=True))
