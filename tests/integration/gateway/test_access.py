"""Keys, tenants, quotas and repetitions through a gateway that asks for keys, on a real NATS and Redis."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from rouse_bus import subjects
from rouse_common.errors import Internal, InvalidArgument
from rouse_contracts import access, functions, inference, node
from rouse_contracts.status import DETAILS_KEY
from rouse_gateway import metrics
from rouse_gateway.app import GatewayApp
from rouse_gateway.config import GatewayConfig
from rouse_testkit.doubles_gateway import Control, echo
from rouse_testkit.front import Front, eventually, floats, fp32, refused
from rouse_testkit.running import running

Metadata = tuple[tuple[str, str], ...]
ACME: Metadata = (("authorization", "Bearer acme-key"),)
DEPLOYER: Metadata = (("x-api-key", "acme-deployer"),)
OTHER: Metadata = (("authorization", "Bearer other-key"),)
ADMIN: Metadata = (("authorization", "Bearer admin-key"),)
OTHER_KEY: Metadata = (("x-api-key", "acme-second"),)
NAMES = {
    "acme-key": "acme", "acme-deployer": "acme", "other-key": "other", "admin-key": "default", "acme-second": "acme",
}  # fmt: skip
ROLES = {"acme-deployer": access.ROLE_DEPLOY, "admin-key": access.ROLE_ADMIN}


def table(generation: int, **quota: Any) -> access.AccessTable:
    """Keys of three tenants; the quota is acme's."""
    made = access.AccessTable(generation=generation)
    for name in ("default", "other"):
        made.tenants.add(name=name, weight=1)
    made.tenants.add(name="acme", weight=3, quota=access.Quota(**quota))
    for text, tenant in NAMES.items():
        digest = hashlib.sha256(text.encode()).digest()
        made.keys.add(key_id=text[:5], sha256=digest, tenant=tenant, role=ROLES.get(text, access.ROLE_INVOKE))
    return made


async def announce(control: Control, made: access.AccessTable) -> None:
    bus = control.bus
    assert bus is not None

    async def in_use() -> bool:
        # Again and again: the gateway may not have subscribed yet.
        await bus.publish(subjects.ACCESS, made.SerializeToString())
        return int(metrics.ACCESS_GENERATION._value.get()) == made.generation

    await eventually(in_use, "the access table is in use")


@pytest.fixture
async def guarded(control: Control, config: GatewayConfig, tmp_path: Path) -> AsyncIterator[Front]:
    """A gateway that asks for keys, with a function of acme, one of other, and one that other shares."""
    control.add_function("own", nodes=["n0"]).tenant = "acme"
    control.add_function("foreign", nodes=["n0"]).tenant = "other"
    control.add_function("common", nodes=["n0"], shared=True).tenant = "other"
    control.add_function("capped", nodes=["n0"], limits=functions.Limits(max_concurrent_requests=2)).tenant = "acme"
    metrics.TABLE_GENERATION.set(0)
    metrics.ACCESS_GENERATION.set(0)
    async with running(GatewayApp(dataclasses.replace(config, auth=True))) as service:
        address = await service.ready()
        async with grpc.aio.insecure_channel(address) as channel:
            mesh = functions.FunctionServiceStub(channel)
            await announce(control, table(1))
            status = await mesh.GetStatus(functions.GetStatusRequest(), timeout=10, metadata=ADMIN)
            front = Front(
                control, control.nodes["n0"], address, status.http_address, channel, mesh,
                inference.GRPCInferenceServiceStub(channel), tmp_path,
                lambda: int(metrics.TABLE_GENERATION._value.get()), service.stop,
            )  # fmt: skip
            await front.settled()
            yield front


def call(front: Front, function: str, metadata: Metadata, *values: float, **fields: Any) -> Any:
    request = functions.InferRequest(function=function, inputs=[fp32("x", *values)], **fields)
    return front.mesh.Infer(request, timeout=20, metadata=metadata)


async def test_a_request_needs_a_key_and_goes_out_as_its_tenants(guarded: Front) -> None:
    code, details, _ = await refused(call(guarded, "own", (), 1))
    assert (code, details.reason) == (grpc.StatusCode.UNAUTHENTICATED, "NO_KEY")
    wrong = (("authorization", "Bearer acme-kex"),)
    assert (await refused(call(guarded, "own", wrong, 1)))[1].reason == "BAD_KEY"
    answer = await call(guarded, "own", ACME, 1, 2)
    assert floats(answer.outputs[0]) == [1, 2]
    assert (guarded.node.requests[-1].tenant, guarded.node.requests[-1].tenant_weight) == ("acme", 3)
    live = await guarded.models.ServerLive(inference.ServerLiveRequest(), timeout=10)
    assert live.live


async def test_requests_of_a_stream_are_the_tenant_s_that_opened_it(guarded: Front) -> None:
    given = [guarded.model_request(model, 1.0) for model in ("own", "foreign", "common")]
    call = guarded.models.ModelStreamInfer(iter(given), timeout=20, metadata=ACME)
    got = [response async for response in call]
    assert [response.error_message for response in got] == [
        "", "Request for unknown model: 'foreign' is not found", "",
    ]  # fmt: skip
    assert {request.tenant for request in guarded.node.requests[-2:]} == {"acme"}
    # Without requests: a client that writes to a stream which ended may see its own error before ours.
    code, details, _ = await refused(anext(aiter(guarded.models.ModelStreamInfer(iter(()), timeout=20))))
    assert (code, details.reason) == (grpc.StatusCode.UNAUTHENTICATED, "NO_KEY")


async def test_functions_of_others_are_not_there_unless_they_are_shared(guarded: Front) -> None:
    unknown = await refused(call(guarded, "nothing", ACME, 1))
    hidden = await refused(call(guarded, "foreign", ACME, 1))
    assert hidden[0] == unknown[0] == grpc.StatusCode.NOT_FOUND
    assert hidden[2] == unknown[2].replace("nothing", "foreign")
    assert set(hidden[1].metadata) == set(unknown[1].metadata)
    assert floats((await call(guarded, "common", ACME, 5)).outputs[0]) == [5]
    assert floats((await call(guarded, "foreign", ADMIN, 5)).outputs[0]) == [5]

    async def listed(metadata: Metadata) -> list[str]:
        found = await guarded.mesh.ListFunctions(functions.ListFunctionsRequest(), timeout=10, metadata=metadata)
        return [function.name for function in found.functions]

    assert await listed(ACME) == ["capped", "common", "own"]
    assert await listed(OTHER) == ["common", "foreign"]
    assert await listed(ADMIN) == ["capped", "common", "foreign", "own"]
    describe = functions.GetFunctionRequest(name="foreign")
    assert (await refused(guarded.mesh.GetFunction(describe, timeout=10, metadata=ACME)))[1].reason == (
        "FUNCTION_NOT_FOUND"
    )
    index = await guarded.models.RepositoryIndex(inference.RepositoryIndexRequest(), timeout=10, metadata=ACME)
    assert {row.name for row in index.models} == {"own", "common", "capped"}
    metadata_ = inference.ModelMetadataRequest(name="foreign")
    assert (await refused(guarded.models.ModelMetadata(metadata_, timeout=10, metadata=ACME)))[0] == (
        grpc.StatusCode.NOT_FOUND
    )
    ready = await guarded.models.ModelReady(inference.ModelReadyRequest(name="foreign"), timeout=10, metadata=ACME)
    assert not ready.ready


async def test_roles_and_owners_decide_who_may_change_what(guarded: Front) -> None:
    delete = functions.DeleteFunctionRequest
    for name, metadata, reason in (
        ("own", ACME, "ROLE_MISSING"),
        ("common", DEPLOYER, "NOT_OWNER"),
        ("foreign", DEPLOYER, "FUNCTION_NOT_FOUND"),
        ("nothing", DEPLOYER, "FUNCTION_NOT_FOUND"),
    ):
        _, details, _ = await refused(guarded.mesh.DeleteFunction(delete(name=name), timeout=10, metadata=metadata))
        assert details.reason == reason
    wake = functions.WakeFunctionRequest(name="common")
    assert (await refused(guarded.mesh.WakeFunction(wake, timeout=10, metadata=DEPLOYER)))[1].reason == "NOT_OWNER"
    unload = inference.RepositoryModelUnloadRequest(model_name="common")
    assert (await refused(guarded.models.RepositoryModelUnload(unload, timeout=10, metadata=DEPLOYER)))[1].reason == (
        "NOT_OWNER"
    )
    logs = guarded.mesh.ReadLogs(functions.ReadLogsRequest(), timeout=10, metadata=DEPLOYER)
    assert (await refused(logs.read()))[1].reason == "ROLE_MISSING"
    logs = guarded.mesh.ReadLogs(functions.ReadLogsRequest(function="foreign"), timeout=10, metadata=DEPLOYER)
    assert (await refused(logs.read()))[1].reason == "FUNCTION_NOT_FOUND"
    keys = access.AccessServiceStub(guarded.channel)
    listing = keys.ListKeys(access.ListKeysRequest(), timeout=10, metadata=DEPLOYER)
    assert (await refused(listing))[1].reason == "ROLE_MISSING"
    await guarded.mesh.DeleteFunction(delete(name="own"), timeout=10, metadata=DEPLOYER)


async def test_what_was_used_is_told_to_who_used_it(guarded: Front) -> None:
    async def told(metadata: Metadata, tenant: str = "") -> list[str]:
        request = functions.GetUsageRequest(tenant=tenant)
        answer = await guarded.mesh.GetUsage(request, timeout=10, metadata=metadata)
        return [row.tenant for row in answer.rows]

    assert await told(ACME) == await told(ACME, "acme") == ["acme"]
    assert await told(ADMIN) == ["everybody"]
    assert await told(ADMIN, "other") == ["other"]
    code, details, _ = await refused(told(ACME, "other"))
    assert (code, details.reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_OWNER")


async def test_a_key_revoked_is_refused_from_then_on(guarded: Front) -> None:
    await call(guarded, "own", ACME, 1)
    without = table(2)
    del without.keys[:2]
    await announce(guarded.control, without)
    assert (await refused(call(guarded, "own", ACME, 1)))[1].reason == "BAD_KEY"


async def test_an_open_stream_ends_when_its_key_is_revoked(guarded: Front) -> None:
    """At once where the news comes by NATS, within REFETCH_S otherwise; what is under way on it ends, too."""

    async def requests() -> AsyncIterator[inference.ModelInferRequest]:
        yield guarded.model_request("own", 1.0)
        await asyncio.Event().wait()

    kept = guarded.models.ModelStreamInfer(requests(), timeout=30, metadata=OTHER_KEY)
    streams = [guarded.models.ModelStreamInfer(requests(), timeout=30, metadata=ACME) for _ in range(2)]
    logs = guarded.mesh.ReadLogs(functions.ReadLogsRequest(function="own", follow=True), timeout=30, metadata=DEPLOYER)
    for stream in (*streams, kept):
        assert not (await stream.read()).error_message
    before = table(2)
    for number in range(2):
        before.keys[number].sha256 = b"another text" + bytes([number])
    await announce(guarded.control, before)
    for stream in (*streams, logs):
        code, details, text = await refused(stream.read())
        assert (code, details.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_REVOKED"), text
    assert kept.done() is False
    kept.cancel()


async def test_a_stream_ends_when_its_key_runs_out(guarded: Front) -> None:
    limited = table(2)
    limited.keys[0].valid_until.FromMilliseconds(int(time.time() * 1000) + 1500)
    await announce(guarded.control, limited)

    async def requests() -> AsyncIterator[inference.ModelInferRequest]:
        yield guarded.model_request("own", 1.0)
        await asyncio.Event().wait()

    stream = guarded.models.ModelStreamInfer(requests(), timeout=30, metadata=ACME)
    assert not (await stream.read()).error_message
    assert (await refused(stream.read()))[1].reason == "KEY_EXPIRED"


async def test_events_over_http_end_when_the_key_is_revoked(guarded: Front) -> None:
    told, more = asyncio.Event(), asyncio.Event()

    async def endless(request: node.InferRequest) -> AsyncIterator[node.InferResponse]:
        yield await echo(request)
        told.set()
        await more.wait()

    guarded.control.add_function("events", nodes=["n0"], decoupled=True).tenant = "acme"
    guarded.control.nodes["n0"].behaviour = endless
    await guarded.publish()
    host, port = guarded.http.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"x": [1.0]}'
    writer.write(
        b"POST /v2/models/events/generate_stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme-key\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    assert b"200" in await reader.readline()
    await told.wait()
    without = table(2)
    del without.keys[:2]
    await announce(guarded.control, without)
    async with asyncio.timeout(10):
        said = await reader.read()
    assert b"data: " in said
    assert not said.endswith(b"0\r\n\r\n"), "it looks as if all had been said"
    writer.close()


async def test_http_asks_for_keys_too(guarded: Front) -> None:
    def get(path: str, **headers: str) -> tuple[int, Any, Any]:
        request = urllib.request.Request(f"http://{guarded.http}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.load(answer), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error), error.headers

    assert (await asyncio.to_thread(get, "/v2/health/live"))[0] == 200
    status, body, headers = await asyncio.to_thread(get, "/v2/models/own")
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert "API key" in body["error"]
    assert (await asyncio.to_thread(lambda: get("/v2/models/own", Authorization="Bearer acme-key")))[0] == 200
    assert (await asyncio.to_thread(lambda: get("/v2/models/foreign", **{"X-Api-Key": "acme-key"})))[0] == 404
    assert (await asyncio.to_thread(lambda: get("/v2/logging", **{"X-Api-Key": "acme-key"})))[0] == 403


async def test_a_rate_is_refused_with_what_clients_need_to_wait(guarded: Front) -> None:
    await announce(guarded.control, table(2, requests_per_second=0.01, burst=3))
    for _ in range(3):
        await call(guarded, "own", ACME, 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(guarded, "common", ACME, 1)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    packed = dict(caught.value.trailing_metadata() or ())[DETAILS_KEY]
    assert isinstance(packed, bytes)
    found = {detail.TypeName(): detail for detail in status_pb2.Status.FromString(packed).details}
    retry, quota, info = (
        error_details_pb2.RetryInfo(), error_details_pb2.QuotaFailure(), error_details_pb2.ErrorInfo()
    )  # fmt: skip
    for message in (retry, quota, info):
        assert found[message.DESCRIPTOR.full_name].Unpack(message)
    assert 0 < retry.retry_delay.seconds <= 100
    assert quota.violations[0].subject == "tenant:acme"
    assert info.reason == "QUOTA_EXCEEDED"
    assert {"tenant", "function", "limit"} <= set(info.metadata)
    # Others have quotas of their own.
    await call(guarded, "common", OTHER, 1)


async def test_caps_of_functions_and_tenants_hold_and_slots_come_back(guarded: Front) -> None:
    release = asyncio.Event()

    async def wait(request: node.InferRequest) -> node.InferResponse:
        await release.wait()
        return await echo(request)

    guarded.node.behaviour = wait
    running_ = [asyncio.ensure_future(call(guarded, "capped", ACME, 1)) for _ in range(2)]
    await eventually(lambda: len(guarded.node.requests) == 2, "both are executed")
    code, details, _ = await refused(call(guarded, "capped", ACME, 1))
    assert (code, details.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_REQUESTS")
    assert details.violations == (("function:capped", "2 requests in flight"),)
    assert details.retry_after_s
    await announce(guarded.control, table(2, max_concurrent_requests=1))
    running_.append(asyncio.ensure_future(call(guarded, "own", ACME, 1)))
    await eventually(lambda: len(guarded.node.requests) == 3, "it is executed")
    assert (await refused(call(guarded, "common", ACME, 1)))[1].violations[0][0] == "tenant:acme"
    running_.append(asyncio.ensure_future(call(guarded, "common", OTHER, 1)))
    release.set()
    await asyncio.gather(*running_)
    await call(guarded, "own", ACME, 1)


async def test_a_repetition_gets_the_answer_of_the_first_and_does_not_run(guarded: Front) -> None:
    release = asyncio.Event()

    async def wait(request: node.InferRequest) -> node.InferResponse:
        await release.wait()
        return await echo(request)

    guarded.node.behaviour = wait
    calls = [asyncio.ensure_future(call(guarded, "own", ACME, 1, 2, request_id="r1")) for _ in range(5)]
    await eventually(lambda: len(guarded.node.requests) == 1, "one is executed")
    release.set()
    answers = await asyncio.gather(*calls)
    answers.append(await call(guarded, "own", ACME, 1, 2, request_id="r1"))
    assert len(guarded.node.requests) == 1
    assert all(floats(answer.outputs[0]) == [1, 2] and answer.request_id == "r1" for answer in answers)
    assert {answer.device for answer in answers} == {"gpu0"}
    code, details, _ = await refused(call(guarded, "own", ACME, 1, 3, request_id="r1"))
    assert (code, details.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "IDEMPOTENCY_KEY_REUSED")
    # Another tenant's request is another request, and so is one of another function.
    await call(guarded, "common", OTHER, 1, 2, request_id="r1")
    await call(guarded, "common", ACME, 1, 2, request_id="r1")
    assert len(guarded.node.requests) == 3


async def test_the_protocols_header_makes_a_retry_safe_too(guarded: Front) -> None:
    metadata = (*ACME, ("idempotency-key", "k1"))
    for _ in range(3):
        request = guarded.model_request("own", 4)
        answer = await guarded.models.ModelInfer(request, timeout=10, metadata=metadata)
        assert answer.raw_output_contents
    assert len(guarded.node.requests) == 1


async def test_failures_repeat_where_it_ran_and_not_where_it_did_not(guarded: Front) -> None:
    async def fails(request: node.InferRequest) -> node.InferResponse:
        raise Internal("FUNCTION_RAISED", "function 'own' raised ValueError: no", function="own")

    async def refuses(request: node.InferRequest) -> node.InferResponse:
        raise InvalidArgument("BAD_INPUT", "not like this")

    guarded.node.behaviour = fails
    for _ in range(2):
        code, details, message = await refused(call(guarded, "own", ACME, 1, request_id="ran"))
        assert (code, details.reason) == (grpc.StatusCode.INTERNAL, "FUNCTION_RAISED")
        assert "ValueError" in message
    assert len(guarded.node.requests) == 1
    guarded.node.behaviour = refuses
    assert (await refused(call(guarded, "own", ACME, 1, request_id="did-not")))[1].reason == "BAD_INPUT"
    guarded.node.behaviour = echo
    assert floats((await call(guarded, "own", ACME, 1, request_id="did-not")).outputs[0]) == [1]


async def test_a_client_that_goes_away_finds_its_answer_when_it_comes_again(guarded: Front) -> None:
    release = asyncio.Event()

    async def wait(request: node.InferRequest) -> node.InferResponse:
        await release.wait()
        return await echo(request)

    guarded.node.behaviour = wait
    first = asyncio.ensure_future(call(guarded, "own", ACME, 8, request_id="gone"))
    await eventually(lambda: len(guarded.node.requests) == 1, "it is executed")
    first.cancel()
    again = asyncio.ensure_future(call(guarded, "own", ACME, 8, request_id="gone"))
    release.set()
    assert floats((await again).outputs[0]) == [8]
    assert len(guarded.node.requests) == 1
    assert guarded.node.cancelled == 0
