"""A gateway's FunctionService in this process: a real gRPC server that keeps what it is given."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import rouse
from rouse_contracts import functions as contract
from rouse_contracts.arrays import to_array, to_tensor
from rouse_contracts.status import DETAILS_KEY, ErrorDetails, encode_details


class FunctionDouble(contract.FunctionServiceServicer):
    """Stores blobs and functions in memory; `compute` answers Infer; `fail` makes a method fail."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.functions: dict[str, list[contract.FunctionVersion]] = {}
        self.deployed: list[contract.DeployFunctionRequest] = []
        # Numbers of versions by deployment id; percentages by version, by function.
        self.deployments: dict[str, int] = {}
        self.traffic: dict[str, dict[int, int]] = {}
        self.uploads: list[list[int]] = []
        self.calls: Counter[str] = Counter()
        self.requests: list[Any] = []
        self.spans: dict[str, list[contract.Span]] = {}
        self.lines: list[str] = []
        self.instance_state = "READY"
        self.reason = "evicted from gpu0 for bert"
        self.compute: Callable[[dict[str, np.ndarray]], dict[str, Any]] = lambda inputs: inputs
        self.signature = contract.Signature()
        self.follow_ended = threading.Event()
        self._failures: dict[str, list[tuple[grpc.StatusCode, str, ErrorDetails | None]]] = {}
        self._lock = threading.Lock()

    def fail(
        self, method: str, code: grpc.StatusCode, message: str, details: ErrorDetails | None, times: int = 1
    ) -> None:
        """The next `times` calls of `method` fail so; without details like a broken connection."""
        self._failures[method] = [(code, message, details)] * times

    def _enter(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        with self._lock:
            self.calls[method] += 1
            self.requests.append(request)
            planned = self._failures.get(method)
            failure = planned.pop(0) if planned else None
        assert context.time_remaining() is not None, f"{method} was called without a deadline"
        if failure is not None:
            self._abort(context, *failure)

    @staticmethod
    def _abort(
        context: grpc.ServicerContext, code: grpc.StatusCode, message: str, details: ErrorDetails | None
    ) -> None:
        if details is not None:
            value: int = code.value[0]
            context.set_trailing_metadata(((DETAILS_KEY, encode_details(value, message, details)),))
        context.abort(code, message)

    def _need(self, name: str, context: grpc.ServicerContext) -> list[contract.FunctionVersion]:
        if name not in self.functions:
            details = ErrorDetails("FUNCTION_NOT_FOUND", {"function": name})
            self._abort(context, grpc.StatusCode.NOT_FOUND, f"there is no function '{name}'", details)
        return self.functions[name]

    def FindMissingBlobs(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("FindMissingBlobs", request, context)
        missing = [digest for digest in request.digests if digest not in self.blobs]
        return contract.FindMissingBlobsResponse(missing_digests=missing)

    def UploadBlob(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        self._enter("UploadBlob", None, context)
        header = next(requests).header
        chunks = [message.chunk for message in requests]
        data = b"".join(chunks)
        if len(data) != header.size_bytes or hashlib.sha256(data).hexdigest() != header.digest:
            reason = "HASH_MISMATCH" if len(data) == header.size_bytes else "UPLOAD_TRUNCATED"
            self._abort(context, grpc.StatusCode.INVALID_ARGUMENT, "damaged", ErrorDetails(reason))
        with self._lock:
            self.uploads.append([len(chunk) for chunk in chunks])
            self.blobs[header.digest] = data
        return contract.UploadBlobResponse(received_bytes=len(data))

    def DeployFunction(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("DeployFunction", request, context)
        if any(file.digest not in self.blobs for file in request.files):
            self._abort(context, grpc.StatusCode.FAILED_PRECONDITION, "a blob is missing", ErrorDetails("BLOB_MISSING"))
        versions = self.functions.setdefault(request.spec.name, [])
        if request.deployment_id in self.deployments:
            return contract.DeployFunctionResponse(version=versions[self.deployments[request.deployment_id] - 1])
        same = versions and request.only_if_changed and self.deployed[-1].files == request.files
        if same and self.deployed[-1].spec == request.spec:
            return contract.DeployFunctionResponse(version=versions[-1], unchanged=True)
        self.deployments[request.deployment_id] = len(versions) + 1
        if not versions or not request.without_traffic:
            self.traffic[request.spec.name] = {len(versions) + 1: 100}
        version = contract.FunctionVersion(
            version_id=f"{request.spec.name}-{len(versions) + 1}",
            version=len(versions) + 1,
            spec=request.spec,
            artefact_digest="ab" * 32,
            weights_bytes=3 << 20,
            artefact_bytes=sum(file.size_bytes for file in request.files),
            format=contract.ARTEFACT_FORMAT_PYTHON if request.spec.handler else contract.ARTEFACT_FORMAT_HUGGING_FACE,
            addresses=contract.AddressRange(
                base=0x5000_0200_0000, weights_bytes=32 << 20, state_bytes=512 << 20, scratch_bytes=512 << 20
            ),
        )
        version.created_at.FromSeconds(1_700_000_000)
        if not version.spec.signature.inputs:
            version.spec.signature.CopyFrom(self.signature)
        versions.append(version)
        self.deployed.append(request)
        return contract.DeployFunctionResponse(version=version)

    def _summary(self, name: str) -> contract.FunctionSummary:
        shares = self.traffic[name]
        return contract.FunctionSummary(
            name=name,
            state=contract.FUNCTION_STATE_READY,
            active_version=self.functions[name][max(shares, key=lambda number: (shares[number], number)) - 1],
            ready_instances=1,
            tenant="default",
            traffic=[contract.TrafficShare(version=v, percent=p) for v, p in shares.items()] if len(shares) > 1 else [],
        )

    def SetTraffic(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("SetTraffic", request, context)
        self._need(request.name, context)
        self.traffic[request.name] = {share.version: share.percent for share in request.shares} or {
            len(self.functions[request.name]): 100
        }
        return contract.SetTrafficResponse(function=self._summary(request.name))

    def RollBack(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("RollBack", request, context)
        self._need(request.name, context)
        self.traffic[request.name] = {1: 100}
        return contract.RollBackResponse(function=self._summary(request.name))

    def SleepFunction(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("SleepFunction", request, context)
        self._need(request.name, context)
        return contract.SleepFunctionResponse(function=self._summary(request.name))

    def WakeFunction(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("WakeFunction", request, context)
        self._need(request.name, context)
        return contract.WakeFunctionResponse(function=self._summary(request.name))

    def DeleteFunction(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("DeleteFunction", request, context)
        self._need(request.name, context)
        del self.functions[request.name]
        return contract.DeleteFunctionResponse()

    def GetFunction(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("GetFunction", request, context)
        versions = self._need(request.name, context)
        response = contract.GetFunctionResponse(function=self._summary(request.name), versions=versions)
        last = versions[-1].version_id
        response.instances.add(instance_id="i-1", version_id=last, node_id="node-1", state=self.instance_state)
        response.residency.add(
            version_id=last,
            node_id="node-1",
            state="HOST",
            size_bytes=3 << 20,
            reason=self.reason,
            swap_in_count=2,
        )
        response.usage.requests = 7
        response.usage.device_ms = 12.5
        event = response.events.add(kind="function.deployed", subject=request.name, message="version 1")
        event.at.FromSeconds(1_700_000_000)
        return response

    def ListFunctions(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("ListFunctions", request, context)
        return contract.ListFunctionsResponse(functions=[self._summary(name) for name in sorted(self.functions)])

    def GetUsage(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("GetUsage", request, context)
        rows = [("acme", "digits", 7), ("", "digits", 2)]
        if request.grouping == contract.USAGE_GROUPING_TENANT:
            rows = [(tenant, "", requests) for tenant, _, requests in rows]
        if request.grouping == contract.USAGE_GROUPING_HOUR:
            return self._ledger(request)
        return contract.GetUsageResponse(
            rows=[
                contract.UsageRow(
                    tenant=tenant, function=function, usage=contract.UsageSummary(requests=requests, device_ms=12.5)
                )
                for tenant, function, requests in rows
            ]
        )

    def _ledger(self, request: Any) -> Any:
        """One row a page, an hour each from 2023-11-14 22:00 on, within the period."""
        hours = [1_699_999_200 + 3600 * i for i in range(3)]
        hours = [h for h in hours if not request.HasField("since") or h >= request.since.seconds]
        hours = [h for h in hours if not request.HasField("until") or h < request.until.seconds]
        page = int(request.page_token or 0)
        usage = contract.UsageSummary(requests=1, device_ms=0.1, host_ms=1000.0, host_byte_s=64.0, billed_ms=100.1)
        answer = contract.GetUsageResponse(next_page_token=str(page + 1) if page + 1 < len(hours) else "")
        for hour in hours[page : page + 1]:
            answer.rows.add(tenant="acme", function="digits", usage=usage).hour.FromSeconds(hour)
        return answer

    def Infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("Infer", request, context)
        self._need(request.function, context)
        outputs = self.compute({tensor.name: to_array(tensor) for tensor in request.inputs})
        wanted = request.output_names or list(outputs)
        return contract.InferResponse(
            request_id=request.request_id or "made-by-gateway",
            function=request.function,
            version=request.version or "1",
            outputs=[to_tensor(name, outputs[name]) for name in wanted],
            timings=contract.Timings(queue_ms=0.5, swap_ms=2.0, execute_ms=1.5, total_ms=4.25),
            trace_id="0af7651916cd43dd8448eb211c80319c",
            node_id="node-1",
            device="gpu0",
        )

    def InferStream(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._enter("InferStream", request, context)
        context.add_callback(self.follow_ended.set)
        for number in range(int(request.request.options.parameters["count"].int64_value)):
            response = contract.InferResponse(function=request.request.function, version="1")
            response.outputs.append(to_tensor("n", np.array([number])))
            yield contract.InferStreamResponse(response=response)
        if request.request.request_id == "endless":
            self.follow_ended.wait(30)

    def ReadLogs(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._enter("ReadLogs", request, context)
        # Before the first line leaves: a client that has read it may hang up at once.
        context.add_callback(self.follow_ended.set)
        yield contract.ReadLogsResponse(lines=self.lines[-request.tail :])
        if request.follow:
            self.follow_ended.wait(30)

    def GetTrace(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("GetTrace", request, context)
        if request.trace_id not in self.spans:
            self._abort(context, grpc.StatusCode.NOT_FOUND, "no such trace", ErrorDetails("TRACE_NOT_FOUND"))
        return contract.GetTraceResponse(spans=self.spans[request.trace_id])

    def GetStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._enter("GetStatus", request, context)
        response = contract.GetStatusResponse(mesh_version="0.1.0", functions=len(self.functions))
        response.services.add(name="gateway", address="127.0.0.1:8001", state="SERVING")
        response.services.add(name="scaler", address="127.0.0.1:8004", state="UNREACHABLE")
        node = response.nodes.add(node_id="node-1", state="READY", host_used_bytes=1 << 20, host_capacity_bytes=1 << 30)
        device = node.devices.add(
            name="gpu0", kind="host", capacity_bytes=256 << 20, mapped_bytes=100 << 20, reserved_bytes=10 << 20
        )
        device.residents.add(version_id="digits-1", node_id="node-1", state="DEVICE", size_bytes=100 << 20)
        return response

    def add_trace(self, trace_id: str, ended_s: float | None = None) -> list[contract.Span]:
        """A request with a queue, a swap and an execution, as several services record it."""
        end = int((time.time() - 60 if ended_s is None else ended_s) * 1e9)
        rows = [
            ("01", "", "Infer", "gateway", -100, 0),
            ("02", "01", "Infer", "node-router", -98, -2),
            ("03", "02", "queue", "node-router", -97, -90),
            ("04", "02", "Acquire", "gpu-server", -90, -30),
            ("05", "04", "swap", "gpu-server", -85, -32),
            ("06", "02", "Execute", "executor", -29, -3),
            ("07", "06", "execute", "executor", -28, -4),
        ]
        self.spans[trace_id] = [
            contract.Span(
                trace_id=trace_id,
                span_id=span,
                parent_span_id=parent,
                name=name,
                service=service,
                start_unix_nanos=end + start * 1_000_000,
                end_unix_nanos=end + stop * 1_000_000,
                attributes={"reason": "bert was used last"} if name == "swap" else {},
            )
            for span, parent, name, service, start, stop in rows
        ]
        return self.spans[trace_id]


@pytest.fixture
def double() -> FunctionDouble:
    return FunctionDouble()


@pytest.fixture
def address(double: FunctionDouble) -> Iterator[str]:
    """Where the double serves."""
    server = grpc.server(ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)])
    contract.add_FunctionServiceServicer_to_server(double, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    double.follow_ended.set()
    server.stop(0).wait(10)


@pytest.fixture
def client(address: str) -> Iterator[rouse.Client]:
    with rouse.Client(address, timeout=10) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Python function package with weights of more than two chunks."""
    root = tmp_path / "digits"
    (root / "parts").mkdir(parents=True)
    (root / "function.py").write_text("class Function:\n    pass\n")
    (root / "weights.safetensors").write_bytes(bytes(range(256)) * (10 << 10))
    (root / "parts" / "empty.txt").write_text("")
    (root / "rouse.toml").write_text(
        """
name = "digits"
handler = "function:Function"
description = "Reads digits"

[[inputs]]
name = "image"
datatype = "FP32"
shape = [-1, 2]

[[outputs]]
name = "digit"
datatype = "INT64"
shape = [-1]

[scaling]
idle_timeout_s = 12.5

[resources]
working_memory_bytes = "2MiB"

[options]
depth = 3
"""
    )
    return root
