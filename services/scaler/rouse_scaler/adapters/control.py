"""cluster-manager, as far as the scaler needs it."""

from __future__ import annotations

from collections.abc import Sequence

from rouse_common.rpc import Channels, call
from rouse_contracts import cluster
from rouse_contracts.functions import FunctionSummary, FunctionVersion

TIMEOUT_S = 5.0


class ControlPlane:
    """ClusterService. Every method raises the RouseError that the contract documents, or Unavailable."""

    def __init__(self, channels: Channels, address: str) -> None:
        self._stub = cluster.ClusterServiceStub(channels.get(address))

    async def functions(self) -> tuple[Sequence[FunctionSummary], Sequence[FunctionVersion]]:
        """All functions, and the versions that have traffic beside the active ones."""
        answer = await call(self._stub.ListFunctions, cluster.ListFunctionsRequest(), timeout_s=TIMEOUT_S)
        return list(answer.functions), list(answer.versions)

    async def instances(self) -> Sequence[cluster.Instance]:
        """Instances of all functions that have not ended."""
        answer = await call(self._stub.ListInstances, cluster.ListInstancesRequest(), timeout_s=TIMEOUT_S)
        return list(answer.instances)

    async def nodes(self) -> Sequence[cluster.Node]:
        answer = await call(self._stub.ListNodes, cluster.ListNodesRequest(), timeout_s=TIMEOUT_S)
        return list(answer.nodes)

    async def function(self, name: str) -> cluster.GetFunctionResponse:
        request = cluster.GetFunctionRequest(name=name)
        answer: cluster.GetFunctionResponse = await call(self._stub.GetFunction, request, timeout_s=TIMEOUT_S)
        return answer

    async def create_instance(self, version_id: str, reason: str) -> cluster.CreateInstanceResponse:
        request = cluster.CreateInstanceRequest(version_id=version_id, reason=reason)
        answer: cluster.CreateInstanceResponse = await call(self._stub.CreateInstance, request, timeout_s=TIMEOUT_S)
        return answer

    async def report(self, instance_id: str, state: cluster.InstanceState, reason: str) -> None:
        request = cluster.ReportInstanceRequest(instance_id=instance_id, state=state, reason=reason)
        await call(self._stub.ReportInstance, request, timeout_s=TIMEOUT_S)
