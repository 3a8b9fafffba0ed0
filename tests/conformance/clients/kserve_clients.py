"""KServe's clients, unchanged: `python kserve_clients.py grpc|rest ADDRESS` prints ok, or fails where it stands.

Runs in an environment of KServe's own: it and tritonclient cannot live in one process.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import numpy as np
from keyed import headers
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
SECOND = np.full_like(FIRST, 3)
WORDS = [["one", "two"]]


def request(binary: bool) -> InferRequest:
    """Tensors as bytes, or as lists, which travel as typed contents or as JSON."""
    tensors = [InferInput("INPUT0", [1, 16], "INT32"), InferInput("INPUT1", [1, 16], "INT32")]
    for tensor, array in zip(tensors, (FIRST, SECOND), strict=True):
        tensor.set_data_from_numpy(array, binary_data=binary)
    return InferRequest("simple", tensors, request_id="seven")


def check(answer: Any) -> None:
    assert answer.id == "seven", answer.id
    outputs = {output.name: output.as_numpy().reshape(1, 16) for output in answer.outputs}
    np.testing.assert_array_equal(outputs["OUTPUT0"], FIRST + SECOND)
    np.testing.assert_array_equal(outputs["OUTPUT1"], FIRST - SECOND)


def words() -> InferRequest:
    tensor = InferInput("INPUT0", [1, 2], "BYTES")
    tensor.set_data_from_numpy(np.array(WORDS, dtype=np.object_), binary_data=False)
    return InferRequest("simple_identity", [tensor])


def check_words(answer: Any) -> None:
    found = [each.decode() if isinstance(each, bytes) else each for each in answer.outputs[0].as_numpy().ravel()]
    assert found == WORDS[0], found


async def over_grpc(address: str) -> None:
    metadata = tuple(headers().items())
    async with InferenceGRPCClient(address) as client:
        assert await client.is_server_live(headers=metadata)
        assert await client.is_server_ready(headers=metadata)
        assert await client.is_model_ready("simple", headers=metadata)
        assert not await client.is_model_ready("nobody", headers=metadata)
        for binary in (True, False):
            check(await client.infer(request(binary), headers=metadata))
        check_words(await client.infer(words(), headers=metadata))
        unknown = request(True)
        unknown.model_name = "nobody"
        caught: Any = None
        try:
            await client.infer(unknown, headers=metadata)
        except grpc.RpcError as error:
            caught = error
        assert caught is not None, "an unknown model was accepted"
        assert caught.code() is grpc.StatusCode.NOT_FOUND, caught
        assert caught.details() == "Request for unknown model: 'nobody' is not found", caught


async def over_rest(address: str) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2", timeout=60)) as client:
        url = f"http://{address}"
        assert await client.is_server_live(url, headers=headers())
        assert await client.is_server_ready(url, headers=headers())
        assert await client.is_model_ready(url, "simple", headers=headers())
        assert not await client.is_model_ready(url, "nobody", headers=headers())
        for binary in (True, False):
            check(await client.infer(url, request(binary), model_name="simple", headers=headers()))
        check_words(await client.infer(url, words(), model_name="simple_identity", headers=headers()))
        caught: Any = None
        try:
            await client.infer(url, request(True), model_name="nobody", headers=headers())
        except Exception as error:  # noqa: BLE001 - of httpx, whose error is named in its text alone
            caught = error
        assert "404" in str(caught), caught
        assert "'nobody' is not found" in str(caught), caught


if __name__ == "__main__":
    asyncio.run({"grpc": over_grpc, "rest": over_rest}[sys.argv[1]](sys.argv[2]))
    print("ok")
