"""RPC handlers of ScalingService."""

from __future__ import annotations

import grpc

from rouse_common.errors import InvalidArgument
from rouse_contracts import scaling as contract
from rouse_scaler.sleeps import Sleeps
from rouse_scaler.state import Registry
from rouse_scaler.wakes import Wakes


class ScalingServicer(contract.ScalingServiceServicer):
    """Answers for wake-ups and decisions."""

    def __init__(self, wakes: Wakes, sleeps: Sleeps, registry: Registry) -> None:
        self._wakes, self._sleeps, self._registry = wakes, sleeps, registry

    async def WakeFunction(
        self, request: contract.WakeFunctionRequest, context: grpc.aio.ServicerContext
    ) -> contract.WakeFunctionResponse:
        if not request.function:
            raise InvalidArgument("BAD_REQUEST", "WakeFunction needs a function")
        started = await self._wakes.wake(request.function, request.version_id)
        return contract.WakeFunctionResponse(started=started)

    async def SleepFunction(
        self, request: contract.SleepFunctionRequest, context: grpc.aio.ServicerContext
    ) -> contract.SleepFunctionResponse:
        return contract.SleepFunctionResponse(stopped=await self._sleeps.sleep(request.function))

    async def ListDecisions(
        self, request: contract.ListDecisionsRequest, context: grpc.aio.ServicerContext
    ) -> contract.ListDecisionsResponse:
        return contract.ListDecisionsResponse(
            decisions=[
                contract.ScalingDecision(
                    function=entry.function,
                    version=entry.number,
                    arrival_rate=entry.seen.arrival_rate or 0.0,
                    instance_rate=entry.state.instance_rate,
                    instances=entry.counted,
                    desired=entry.decision.desired,
                    reason=entry.decision.reason + (f"; last action failed: {entry.trouble}" if entry.trouble else ""),
                )
                for entry in self._registry.entries()
                if entry.seen is not None and entry.decision is not None
            ]
        )
