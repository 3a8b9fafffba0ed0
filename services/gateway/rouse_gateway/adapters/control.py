"""Calls to cluster-manager, scaler and model-repository."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from rouse_common.rpc import Channels, call
from rouse_contracts import cluster, functions, repository, scaling

# Between services of the control plane; a caller's own deadline may be shorter.
CALL_TIMEOUT_S = 5.0


class ClusterManager:
    """The control plane. Every method raises the RouseError that cluster-manager answered."""

    def __init__(self, channels: Channels, address: str) -> None:
        self.address = address
        self._stub = cluster.ClusterServiceStub(channels.get(address))

    async def routing_table(self, timeout_s: float = CALL_TIMEOUT_S) -> cluster.RoutingTable:
        answer = await call(self._stub.GetRoutingTable, cluster.GetRoutingTableRequest(), timeout_s=timeout_s)
        table: cluster.RoutingTable = answer.table
        return table

    async def create_version(
        self, request: cluster.CreateVersionRequest, timeout_s: float
    ) -> cluster.CreateVersionResponse:
        answer: cluster.CreateVersionResponse = await call(self._stub.CreateVersion, request, timeout_s=timeout_s)
        return answer

    async def set_traffic(self, name: str, shares: Sequence[functions.TrafficShare], timeout_s: float) -> None:
        request = cluster.SetTrafficRequest(name=name, shares=shares)
        await call(self._stub.SetTraffic, request, timeout_s=timeout_s)

    async def roll_back(self, name: str, timeout_s: float) -> None:
        await call(self._stub.RollBack, cluster.RollBackRequest(name=name), timeout_s=timeout_s)

    async def get_function(self, name: str, timeout_s: float) -> cluster.GetFunctionResponse:
        answer: cluster.GetFunctionResponse = await call(
            self._stub.GetFunction, cluster.GetFunctionRequest(name=name), timeout_s=timeout_s
        )
        return answer

    async def list_functions(self, timeout_s: float) -> Sequence[functions.FunctionSummary]:
        answer = await call(self._stub.ListFunctions, cluster.ListFunctionsRequest(), timeout_s=timeout_s)
        summaries: Sequence[functions.FunctionSummary] = answer.functions
        return summaries

    async def usage(self, request: cluster.GetUsageRequest, timeout_s: float) -> cluster.GetUsageResponse:
        answer: cluster.GetUsageResponse = await call(self._stub.GetUsage, request, timeout_s=timeout_s)
        return answer

    async def delete_function(self, name: str, timeout_s: float) -> None:
        await call(self._stub.DeleteFunction, cluster.DeleteFunctionRequest(name=name), timeout_s=timeout_s)

    async def list_nodes(self, timeout_s: float) -> Sequence[cluster.Node]:
        answer = await call(self._stub.ListNodes, cluster.ListNodesRequest(), timeout_s=timeout_s)
        nodes: Sequence[cluster.Node] = answer.nodes
        return nodes


class Scaler:
    """Who starts instances."""

    def __init__(self, channels: Channels, address: str) -> None:
        self.address = address
        self._stub = scaling.ScalingServiceStub(channels.get(address))

    async def wake(self, function: str, version_id: str) -> bool:
        """Asks for an instance and says whether one had to be started. Raises what scaler answered."""
        request = scaling.WakeFunctionRequest(function=function, version_id=version_id)
        answer = await call(self._stub.WakeFunction, request, timeout_s=CALL_TIMEOUT_S)
        started: bool = answer.started
        return started

    async def sleep(self, function: str, timeout_s: float) -> int:
        """Has a function's instances stopped above those that it always keeps; how many. Raises what scaler
        answered."""
        request = scaling.SleepFunctionRequest(function=function)
        answer = await call(self._stub.SleepFunction, request, timeout_s=timeout_s)
        stopped: int = answer.stopped
        return stopped


class Repository:
    """Blobs and artefacts. Every method raises the RouseError that model-repository answered."""

    def __init__(self, channels: Channels, address: str) -> None:
        self.address = address
        self._stub = repository.RepositoryServiceStub(channels.get(address))

    async def find_missing(self, digests: Sequence[str], timeout_s: float) -> Sequence[str]:
        request = repository.FindMissingBlobsRequest(digests=digests)
        answer = await call(self._stub.FindMissingBlobs, request, timeout_s=timeout_s)
        missing: Sequence[str] = answer.missing_digests
        return missing

    async def put_blob(self, parts: AsyncIterator[functions.UploadBlobRequest], timeout_s: float) -> int:
        """Passes an upload on, part by part as the repository takes them; returns the bytes it received."""
        answer = await call(self._stub.PutBlob, _map(parts, _put_part), timeout_s=timeout_s)
        received: int = answer.received_bytes
        return received

    async def commit(self, files: Sequence[functions.ArtefactFile], timeout_s: float) -> repository.Artefact:
        request = repository.CommitArtefactRequest(files=files)
        answer = await call(self._stub.CommitArtefact, request, timeout_s=timeout_s)
        artefact: repository.Artefact = answer.artefact
        return artefact


def _put_part(part: functions.UploadBlobRequest) -> repository.PutBlobRequest:
    if part.WhichOneof("part") == "header":
        header = repository.PutBlobRequest.Header(digest=part.header.digest, size_bytes=part.header.size_bytes)
        return repository.PutBlobRequest(header=header)
    return repository.PutBlobRequest(chunk=part.chunk)


async def _map(source: AsyncIterator[Any], convert: Callable[[Any], Any]) -> AsyncIterator[Any]:
    async for item in source:
        yield convert(item)
