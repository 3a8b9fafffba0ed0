"""Speaks REST v2 to a mesh with the public client, in a process of its own.

Run as `python triton_http.py ADDRESS sync|async`; prints `ok`. It expects the functions that
test_rest_clients.py deploys: those of examples.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from keyed import keyed
from tritonclient.utils import InferenceServerException, np_to_triton_dtype
from tritonclient.utils import shared_memory as shm

A = np.arange(32, dtype=np.int32).reshape(2, 16)
B = np.full((2, 16), 3, np.int32)
WORDS = np.array([[b"one", "zwölf".encode()], [b"", b"\x00\xff"]], dtype=object)
COMPRESSIONS = (None, "gzip", "deflate")


def given(name: str, array: np.ndarray, binary: bool = True) -> triton.InferInput:
    tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def refused(action: Callable[[], Any], status: str, text: str) -> None:
    try:
        action()
    except InferenceServerException as error:
        got = (error.status(), error.message())
    else:
        got = ("200", "it was accepted")
    assert got[0] == status, got
    assert text in got[1], got


def check_sum(answer: triton.InferResult) -> None:
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), A - B)


def infer_in_every_form(client: triton.InferenceServerClient) -> None:
    for sent in COMPRESSIONS:
        for wanted in COMPRESSIONS:
            for binary in (True, False):
                answer = client.infer(
                    "simple",
                    [given("INPUT0", A, binary), given("INPUT1", B, not binary)],
                    outputs=[
                        triton.InferRequestedOutput("OUTPUT0", binary_data=binary),
                        triton.InferRequestedOutput("OUTPUT1", binary_data=not binary),
                    ],
                    request_id="seven",
                    request_compression_algorithm=sent,
                    response_compression_algorithm=wanted,
                )
                check_sum(answer)
                head = answer.get_response()
                assert (head["id"], head["model_version"]) == ("seven", "1"), head
    # Without outputs named, all come, binary.
    check_sum(client.infer("simple", [given("INPUT0", A), given("INPUT1", B)], model_version="1"))
    answer = client.infer("simple_identity", [given("INPUT0", WORDS)])
    assert answer.as_numpy("OUTPUT0").tolist() == WORDS.tolist()
    text = np.array([["a", "ü"]], dtype=object)
    plain = [triton.InferRequestedOutput("OUTPUT0", binary_data=False)]
    answer = client.infer("simple_identity", [given("INPUT0", text, False)], outputs=plain)
    assert answer.as_numpy("OUTPUT0").tolist() == [["a", "ü"]]
    best = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    answer = client.infer("simple", [given("INPUT0", A), given("INPUT1", B)], outputs=best)
    assert len(answer.as_numpy("OUTPUT0").ravel()) in (2, 4)
    pending = [client.async_infer("simple", [given("INPUT0", A), given("INPUT1", B)]) for _ in range(8)]
    for request in pending:
        check_sum(request.get_result())


def infer_by_shared_memory(client: triton.InferenceServerClient) -> None:
    client.unregister_system_shared_memory()
    size = A.nbytes
    handle = shm.create_shared_memory_region("both", "/rouse_conformance_http", 4 * size)
    try:
        shm.set_shared_memory_region(handle, [A, B])
        client.register_system_shared_memory("both", "/rouse_conformance_http", 4 * size)
        status = client.get_system_shared_memory_status()
        assert [(row["name"], row["byte_size"]) for row in status] == [("both", 4 * size)], status
        inputs, outputs = [], []
        for number in range(2):
            entry = triton.InferInput(f"INPUT{number}", list(A.shape), "INT32")
            entry.set_shared_memory("both", size, offset=number * size)
            inputs.append(entry)
            output = triton.InferRequestedOutput(f"OUTPUT{number}", binary_data=True)
            output.set_shared_memory("both", size, offset=(2 + number) * size)
            outputs.append(output)
        client.infer("simple", inputs, outputs=outputs)
        got = shm.get_contents_as_numpy(handle, np.int32, [2, 16], offset=2 * size)
        np.testing.assert_array_equal(got, A + B)
        client.unregister_system_shared_memory("both")
        assert client.get_system_shared_memory_status() == []
    finally:
        shm.destroy_shared_memory_region(handle)


def management(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("nobody")
    server = client.get_server_metadata()
    assert server["name"] == "rouse"
    assert "statistics" in server["extensions"]
    assert client.get_model_metadata("simple")["inputs"][0] == {
        "name": "INPUT0",
        "datatype": "INT32",
        "shape": [-1, 16],
    }
    config = client.get_model_config("simple")
    assert (config["name"], config["max_batch_size"]) == ("simple", 8), config
    assert config["input"][0]["dims"] == [16], config
    statistics = client.get_inference_statistics("simple")["model_stats"]
    assert statistics[0]["name"] == "simple"
    assert isinstance(statistics[0]["inference_stats"]["queue"]["count"], int)
    index = client.get_model_repository_index()
    assert {"simple", "simple_identity"} <= {row["name"] for row in index}
    client.load_model("simple")
    settings = client.get_trace_settings()
    assert client.update_trace_settings(settings={"trace_rate": "1"})["trace_rate"] == settings["trace_rate"]
    logs = client.get_log_settings()
    assert client.update_log_settings({"log_verbose_level": logs["log_verbose_level"]}) == logs


def refusals(client: triton.InferenceServerClient) -> None:
    both = [given("INPUT0", A), given("INPUT1", B)]
    unknown = "Request for unknown model: 'nobody' is not found"
    refused(lambda: client.infer("nobody", both), "404", unknown)
    refused(lambda: client.get_model_metadata("nobody"), "404", unknown)
    refused(lambda: client.infer("simple", both, model_version="9"), "404", "9")
    refused(lambda: client.infer("simple", both[:1]), "400", "INPUT1")
    refused(lambda: client.infer("simple", [*both, given("INPUT2", B)]), "400", "INPUT2")
    refused(lambda: client.infer("simple", [given("INPUT0", A.astype(np.float32)), both[1]]), "400", "FP32")
    refused(lambda: client.infer("simple", [given("INPUT0", A[:, :3]), both[1]]), "400", "[2, 3]")
    refused(lambda: client.infer("simple", both, outputs=[triton.InferRequestedOutput("OUTPUT9")]), "400", "OUTPUT9")
    text = [triton.InferRequestedOutput("OUTPUT0", binary_data=False)]
    refused(lambda: client.infer("simple_identity", [given("INPUT0", WORDS)], outputs=text), "400", "binary_data")
    refused(lambda: client.register_cuda_shared_memory("r", b"handle", 0, 8), "501", "CUDA")


def synchronous(address: str) -> None:
    client = keyed(triton.InferenceServerClient(address, concurrency=4), "http")
    infer_in_every_form(client)
    infer_by_shared_memory(client)
    refusals(client)
    management(client)
    client.close()


async def asynchronous(address: str) -> None:
    async with keyed(triton_aio.InferenceServerClient(address), "http") as client:
        assert await client.is_server_ready()
        assert (await client.get_model_config("simple"))["max_batch_size"] == 8
        both = [given("INPUT0", A), given("INPUT1", B, False)]
        for answer in await asyncio.gather(*(client.infer("simple", both) for _ in range(20))):
            check_sum(answer)
        for name in COMPRESSIONS[1:]:
            check_sum(
                await client.infer(
                    "simple", both, request_compression_algorithm=name, response_compression_algorithm=name
                )
            )


if __name__ == "__main__":
    if sys.argv[2] == "sync":
        synchronous(sys.argv[1])
    else:
        asyncio.run(asynchronous(sys.argv[1]))
    print("ok")
