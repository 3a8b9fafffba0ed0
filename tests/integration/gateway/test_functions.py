"""Deploying, describing and deleting through the gateway; logs, traces and status."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from rouse_common.errors import InvalidArgument
from rouse_common.telemetry import JsonLinesExporter
from rouse_contracts import functions
from rouse_gateway.app import GatewayApp
from rouse_gateway.config import GatewayConfig
from rouse_testkit.doubles_gateway import FP32_IDENTITY, Control
from rouse_testkit.front import Front, eventually, floats, refused
from rouse_testkit.running import running

Code = grpc.StatusCode
CODE = b"class F: ..."
DIGEST = hashlib.sha256(CODE).hexdigest()


def upload(data: bytes, digest: str = "", chunk: int = 1 << 20) -> Iterator[functions.UploadBlobRequest]:
    header = functions.UploadBlobRequest.Header(digest=digest or hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    yield functions.UploadBlobRequest(header=header)
    for start in range(0, len(data), chunk):
        yield functions.UploadBlobRequest(chunk=data[start : start + chunk])


def deployment(name: str = "f", **spec: Any) -> functions.DeployFunctionRequest:
    given: dict[str, Any] = {"name": name, "handler": "f:F", "signature": FP32_IDENTITY} | spec
    return functions.DeployFunctionRequest(
        spec=functions.FunctionSpec(**given),
        files=[functions.ArtefactFile(path="f.py", digest=DIGEST, size_bytes=len(CODE))],
    )


async def test_a_deployed_function_can_be_called_at_once(front: Front) -> None:
    front.control.bus = None  # the gateway is not told; it has to ask
    missing = await front.mesh.FindMissingBlobs(functions.FindMissingBlobsRequest(digests=[DIGEST]), timeout=5)
    assert list(missing.missing_digests) == [DIGEST]
    answer = await front.mesh.UploadBlob(upload(CODE), timeout=5)
    assert answer.received_bytes == len(CODE)
    missing = await front.mesh.FindMissingBlobs(functions.FindMissingBlobsRequest(digests=[DIGEST]), timeout=5)
    assert not missing.missing_digests
    deployed = await front.mesh.DeployFunction(deployment(), timeout=5)
    assert deployed.version.version == 1
    assert len(deployed.version.artefact_digest) == 64
    front.control.set_ready("f", "n0")
    assert floats((await front.infer("f", 1.5, timeout=10)).outputs[0]) == [1.5]


async def test_a_second_version_is_the_one_that_is_called(front: Front) -> None:
    await front.mesh.UploadBlob(upload(CODE), timeout=5)
    for number in (1, 2):
        deployed = await front.mesh.DeployFunction(deployment(), timeout=5)
        assert deployed.version.version == number
        assert (await front.infer("f", 1.0)).version == str(number)


async def test_the_spec_s_signature_wins_over_the_derived_one(front: Front) -> None:
    await front.mesh.UploadBlob(upload(CODE), timeout=5)
    derived = functions.Signature(
        inputs=[functions.TensorSpec(name="pixel_values", datatype="FP32", shape=[-1, 3, 8, 8])],
        outputs=[functions.TensorSpec(name="logits", datatype="FP32", shape=[-1, 10])],
    )
    front.control.repository.derived = derived
    front.control.repository.format = functions.ARTEFACT_FORMAT_HUGGING_FACE
    plain = await front.mesh.DeployFunction(deployment(handler="", signature=None), timeout=5)
    assert plain.version.spec.signature == derived
    own = await front.mesh.DeployFunction(deployment(handler=""), timeout=5)
    assert own.version.spec.signature == FP32_IDENTITY


async def test_large_uploads_pass_in_pieces_and_only_as_fast_as_they_are_taken(front: Front) -> None:
    gate = asyncio.Event()
    front.control.repository.before_chunk = gate.wait
    data = bytes(range(256)) * (64 << 10)  # 16 MiB
    sent = 0

    async def parts() -> AsyncIterator[functions.UploadBlobRequest]:
        nonlocal sent
        for part in upload(data, chunk=256 << 10):
            yield part
            sent += 1

    call = asyncio.ensure_future(front.mesh.UploadBlob(parts(), timeout=20))
    settled = -1
    while settled != sent:  # until the pipe is full
        settled = sent
        await asyncio.sleep(0.2)
    assert sent < 64, "the client is held back while the repository takes nothing"
    gate.set()
    assert (await call).received_bytes == len(data)
    assert front.control.repository.blobs[hashlib.sha256(data).hexdigest()] == data


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (list(upload(CODE, digest="ab" * 32)), "HASH_MISMATCH"),
        (list(upload(CODE))[:1], "UPLOAD_TRUNCATED"),
        ([*upload(CODE), functions.UploadBlobRequest(chunk=b"x")], "UPLOAD_TOO_LONG"),
    ],
)
async def test_what_the_repository_refuses_reaches_the_client(
    front: Front, parts: list[functions.UploadBlobRequest], reason: str
) -> None:
    code, details, _ = await refused(front.mesh.UploadBlob(iter(parts), timeout=5))
    assert (code, details.reason) == (Code.INVALID_ARGUMENT, reason)
    assert not front.control.repository.blobs


BAD_DEPLOYMENTS = {
    "no name": (deployment(""), "BAD_NAME"),
    "a path": (deployment("../x"), "BAD_NAME"),
    "too long": (deployment("x" * 129), "BAD_NAME"),
    "not ASCII": (deployment("ünï"), "BAD_NAME"),
    "a line": (deployment("x\n"), "BAD_NAME"),
    "no handler": (deployment(handler=""), "BAD_SPEC"),
    "a bad handler": (deployment(handler="os.system('x')"), "BAD_SPEC"),
    "no tensors": (deployment(signature=None), "BAD_SPEC"),
    "an unknown datatype": (
        deployment(signature=functions.Signature(inputs=[functions.TensorSpec(name="x", datatype="FP7")])),
        "BAD_SPEC",
    ),
    "two tensors of one name": (
        deployment(signature=functions.Signature(inputs=[functions.TensorSpec(name="x", datatype="FP32")] * 2)),
        "BAD_SPEC",
    ),
    "a bad percentile": (deployment(objective=functions.Objective(latency_ms=10, percentile=98)), "BAD_SPEC"),
    "more instances than most": (deployment(scaling=functions.Scaling(min_instances=3, max_instances=2)), "BAD_SPEC"),
    "no files": (functions.DeployFunctionRequest(spec=deployment().spec), "BAD_ARTEFACT"),
}


@pytest.mark.parametrize("what", BAD_DEPLOYMENTS)
async def test_a_bad_deployment_is_refused_and_nothing_is_recorded(front: Front, what: str) -> None:
    await front.mesh.UploadBlob(upload(CODE), timeout=5)
    request, reason = BAD_DEPLOYMENTS[what]
    code, details, _ = await refused(front.mesh.DeployFunction(request, timeout=5))
    assert (code, details.reason) == (Code.INVALID_ARGUMENT, reason)
    assert not front.control.functions


async def test_what_the_repository_says_of_an_artefact_is_answered(front: Front) -> None:
    code, details, _ = await refused(front.mesh.DeployFunction(deployment(), timeout=5))
    assert (code, details.reason) == (Code.FAILED_PRECONDITION, "BLOB_MISSING")
    front.control.repository.commit_error = InvalidArgument("PICKLE_REFUSED", "weights.pt is a pickle")
    code, details, _ = await refused(front.mesh.DeployFunction(deployment(), timeout=5))
    assert (code, details.reason) == (Code.INVALID_ARGUMENT, "PICKLE_REFUSED")


async def test_functions_are_described_listed_and_deleted(front: Front) -> None:
    for name in ("b", "a"):
        front.control.add_function(name, nodes=["n0"])
    await front.publish()
    listed = await front.mesh.ListFunctions(functions.ListFunctionsRequest(), timeout=5)
    assert [f.name for f in listed.functions] == ["a", "b"]
    described = await front.mesh.GetFunction(functions.GetFunctionRequest(name="a"), timeout=5)
    assert described.function.name == "a"
    assert [i.state for i in described.instances] == ["READY"]
    assert len(described.events) == 20
    await front.mesh.DeleteFunction(functions.DeleteFunctionRequest(name="a"), timeout=5)
    assert (await refused(front.infer("a", 1.0)))[0] is Code.NOT_FOUND
    for call in (
        front.mesh.GetFunction(functions.GetFunctionRequest(name="a"), timeout=5),
        front.mesh.DeleteFunction(functions.DeleteFunctionRequest(name="a"), timeout=5),
    ):
        code, details, _ = await refused(call)
        assert (code, details.reason) == (Code.NOT_FOUND, "FUNCTION_NOT_FOUND")


async def test_the_status_shows_nodes_and_services_also_those_that_are_away(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    status = await front.mesh.GetStatus(functions.GetStatusRequest(), timeout=5)
    assert [(s.name, s.state) for s in status.services] == [("scaler", "SERVING"), ("nobody", "UNREACHABLE")]
    assert [(n.node_id, n.state, n.instances) for n in status.nodes] == [("n0", "READY", 1)]
    assert status.functions == 1
    assert status.mesh_version
    await front.control.cluster_server.stop()
    status = await front.mesh.GetStatus(functions.GetStatusRequest(), timeout=5)
    assert not status.nodes
    assert status.functions == 1


def row(number: int, service: str = "gateway", trace: str = "-", text: str = "hello function=f") -> str:
    return f"2026-11-20T12:00:00.{number:03d}Z INFO    {service:<16} trace={trace} {text} n={number}"


async def test_logs_are_read_filtered_and_followed(front: Front) -> None:
    path = front.folder / "logs" / "rouse.log"
    path.write_text("".join(row(n, text=f"hello function={'f' if n % 2 else 'g'}") + "\n" for n in range(20)))
    request = functions.ReadLogsRequest(function="f", tail=3)
    read = [line async for part in front.mesh.ReadLogs(request, timeout=5) for line in part.lines]
    assert [line[-4:] for line in read] == ["n=15", "n=17", "n=19"]

    stream = front.mesh.ReadLogs(functions.ReadLogsRequest(service="node-router", follow=True), timeout=20)
    first = asyncio.ensure_future(stream.read())
    with path.open("a") as file:
        file.write(row(50) + "\n" + row(51, service="node-router") + "\n")
    assert list((await first).lines) == [row(51, service="node-router")]
    path.rename(path.with_name("rouse.log.1"))
    path.write_text(row(52, service="node-router") + "\n")
    assert list((await stream.read()).lines) == [row(52, service="node-router")]
    stream.cancel()


async def test_a_trace_is_read_as_the_services_wrote_it(front: Front) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(JsonLinesExporter(front.folder / "traces", "gateway")))
    tracer = provider.get_tracer("test")
    with (
        tracer.start_as_current_span("Infer") as root,
        tracer.start_as_current_span("hold", attributes={"function": "f"}),
    ):
        trace_id = f"{root.get_span_context().trace_id:032x}"
    answer = await front.mesh.GetTrace(functions.GetTraceRequest(trace_id=trace_id), timeout=10)
    assert [(s.service, s.name) for s in answer.spans] == [("gateway", "Infer"), ("gateway", "hold")]
    assert answer.spans[1].parent_span_id == answer.spans[0].span_id
    assert dict(answer.spans[1].attributes) == {"function": "f"}
    for wrong, code, reason in (
        ("0" * 32, Code.NOT_FOUND, "TRACE_NOT_FOUND"),
        ("../../etc/passwd", Code.INVALID_ARGUMENT, "BAD_TRACE_ID"),
    ):
        got = await refused(front.mesh.GetTrace(functions.GetTraceRequest(trace_id=wrong), timeout=10))
        assert (got[0], got[1].reason) == (code, reason)


async def test_a_stream_of_logs_ends_when_the_gateway_stops(front: Front) -> None:
    stream = front.mesh.ReadLogs(functions.ReadLogsRequest(follow=True), timeout=20)
    path = front.folder / "logs" / "rouse.log"
    first = asyncio.ensure_future(stream.read())
    path.write_text(row(1) + "\n")
    assert list((await first).lines) == [row(1)]
    await front.stop()
    assert await stream.read() is grpc.aio.EOF


async def test_eventually_fails_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rouse_testkit.front.EVENTUALLY_S", 0.01)
    with pytest.raises(AssertionError, match="the moon"):
        await eventually(lambda: False, "the moon")


async def test_the_status_knows_of_the_gateway_without_asking_it(control: Control, config: GatewayConfig) -> None:
    """What clients see there may come from an authority that services do not believe."""
    services = ("gateway=127.0.0.1:1", "scaler=127.0.0.1:1")
    async with (
        running(GatewayApp(dataclasses.replace(config, service=services))) as service,
        grpc.aio.insecure_channel(await service.ready()) as channel,
    ):
        mesh = functions.FunctionServiceStub(channel)

        async def states() -> dict[str, str]:
            answer = await mesh.GetStatus(functions.GetStatusRequest(), timeout=10)
            return {found.name: found.state for found in answer.services}

        async def served() -> bool:
            return (await states())["gateway"] == "SERVING"

        await eventually(served, "the gateway serves")
        assert await states() == {"gateway": "SERVING", "scaler": "UNREACHABLE"}
