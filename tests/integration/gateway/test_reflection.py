"""grpcio's own reflection client: every method of the gateway's contracts can be described, and called by that."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rouse_contracts import functions, inference
from rouse_testkit.front import Front

SERVICES = {
    "inference.GRPCInferenceService": inference.DESCRIPTOR,
    "rouse.functions.v1.FunctionService": functions.DESCRIPTOR,
}
TIMEOUT_S = 20.0


def call_everything(address: str) -> dict[str, Any]:
    """Each method's status for a request without anything in it, by what reflection says of it."""
    found: dict[str, Any] = {}
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        for name in database.get_services():
            for method in pool.FindServiceByName(name).methods:
                if name.startswith("grpc."):
                    found[f"{name}/{method.name}"] = "described"
                    continue
                found[f"{name}/{method.name}"] = call_one(channel, name, method)
    return found


def call_one(channel: grpc.Channel, service: str, method: Any) -> tuple[str, str]:
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    make = kinds[method.client_streaming, method.server_streaming]
    call = make(f"/{service}/{method.name}", request.SerializeToString, response.FromString)
    given = iter([request()]) if method.client_streaming else request()
    try:
        answer = call(given, timeout=TIMEOUT_S)
        for _ in answer if method.server_streaming else ():
            break
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


async def test_every_method_is_described_and_answers(front: Front) -> None:
    found = await asyncio.to_thread(call_everything, front.address)
    for name, contract in SERVICES.items():
        service = contract.services_by_name[name.rpartition(".")[2]]
        missing = {f"{name}/{method.name}" for method in service.methods} - found.keys()
        assert not missing, f"reflection does not know {missing}"
    assert "grpc.health.v1.Health/Watch" in found
    lost = {name: told for name, told in found.items() if told[0] in ("UNKNOWN", "INTERNAL", "DEADLINE_EXCEEDED")}
    assert not lost, f"these fail without a typed error: {lost}"
    # What AccessService answers is cluster-manager's, whose double has none.
    ours = {name: told for name, told in found.items() if not name.startswith("rouse.access.")}
    unserved = {name: told for name, told in ours.items() if told[0] == "UNIMPLEMENTED"}
    assert all(name.rpartition("/")[2] in text for name, (_, text) in unserved.items()), unserved
