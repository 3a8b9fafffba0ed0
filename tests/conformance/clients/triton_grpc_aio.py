"""tritonclient.grpc.aio, unchanged: `python triton_grpc_aio.py ADDRESS` prints ok, or fails where it stands."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpc
from keyed import keyed
from tritonclient.utils import InferenceServerException


def given(name: str, array: np.ndarray, datatype: str) -> grpc.InferInput:
    tensor = grpc.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def simple(number: int) -> list[grpc.InferInput]:
    first = np.full((1, 16), number, np.int32)
    return [given("INPUT0", first, "INT32"), given("INPUT1", np.ones_like(first), "INT32")]


async def requests(count: int) -> AsyncIterator[dict[str, Any]]:
    for number in range(count):
        yield {"model_name": "simple", "inputs": simple(number), "request_id": str(number)}
    yield {"model_name": "nobody", "inputs": simple(0)}
    values = np.arange(3, dtype=np.int32)
    repeat = [
        given("IN", values, "INT32"),
        given("DELAY", np.ones(3, np.uint32), "UINT32"),
        given("WAIT", np.zeros(1, np.uint32), "UINT32"),
    ]
    yield {"model_name": "repeat_int32", "inputs": repeat, "request_id": "many", "enable_empty_final_response": True}


async def main(address: str) -> None:
    async with keyed(grpc.InferenceServerClient(address), "grpc") as client:
        assert await client.is_server_ready()
        answers = await asyncio.gather(*(client.infer("simple", simple(number)) for number in range(50)))
        for number, answer in enumerate(answers):
            assert answer.as_numpy("OUTPUT0").tolist() == [[number + 1] * 16]
        caught: Any = None
        try:
            await client.infer("nobody", simple(1))
        except InferenceServerException as error:
            caught = error
        assert caught is not None, "an unknown model was accepted"
        assert caught.status() == "StatusCode.NOT_FOUND", caught

        ids, errors, numbers = [], [], []
        async for result, failure in client.stream_infer(requests(20)):
            if failure is not None:
                errors.append(failure.message())
                continue
            response = result.get_response()
            if response.model_name == "simple":
                ids.append(response.id)
            elif response.outputs:
                numbers.append(result.as_numpy("OUT")[0])
            else:
                assert response.parameters["triton_final_response"].bool_param
        assert ids == [str(number) for number in range(20)]
        assert errors == ["Request for unknown model: 'nobody' is not found"]
        assert numbers == [0, 1, 2]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    print("ok")
