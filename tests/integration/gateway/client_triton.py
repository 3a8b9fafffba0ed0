"""Speaks to a gateway with the public client, in a process of its own; prints what happened as JSON.

Run as `python client_triton.py ADDRESS`. It expects the functions that test_triton.py sets up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


def given(name: str, array: np.ndarray, datatype: str = "") -> triton.InferInput:
    tensor = triton.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except InferenceServerException as error:
        return {"status": error.status(), "message": error.message()}


def infer(client: triton.InferenceServerClient, model: str, array: np.ndarray, **options: Any) -> Any:
    name = options.pop("name", "x")
    result = client.infer(model, [given(name, array)], client_timeout=10, **options)
    response = result.get_response()
    return {
        "y": result.as_numpy("y").tolist() if array.dtype != np.object_ else [e.decode() for e in result.as_numpy("y")],
        "dtype": str(result.as_numpy("y").dtype),
        "id": response.id,
        "version": response.model_version,
        "trace": len(response.parameters["rouse_trace_id"].string_param),
    }


def main(address: str) -> dict[str, Any]:
    client = triton.InferenceServerClient(address)
    floats = np.array([1.5, -2.0], np.float32)
    metadata = client.get_model_metadata("f", as_json=True)
    actions: dict[str, Callable[[], Any]] = {
        "live": client.is_server_live,
        "ready": client.is_server_ready,
        "model ready": lambda: client.is_model_ready("f"),
        "version ready": lambda: client.is_model_ready("f", "1"),
        "version not ready": lambda: client.is_model_ready("f", "9"),
        "unknown not ready": lambda: client.is_model_ready("nobody"),
        "server": lambda: client.get_server_metadata(as_json=True),
        "metadata": lambda: metadata,
        "unknown metadata": lambda: client.get_model_metadata("nobody"),
        "infer": lambda: infer(client, "f", floats, request_id="seven"),
        "infer version": lambda: infer(client, "f", floats, model_version="1"),
        "infer asked": lambda: infer(client, "f", floats, outputs=[triton.InferRequestedOutput("y")]),
        "infer bytes": lambda: infer(client, "texts", np.array([b"a", b"", "ü".encode()], np.object_)),
        "infer half": lambda: infer(client, "halves", np.array([[0.5]], np.float16)),
        "infer empty": lambda: infer(client, "f", np.array([], np.float32)),
        "infer sleeping": lambda: infer(client, "sleeps", floats),
        "unknown model": lambda: infer(client, "nobody", floats),
        "unknown version": lambda: infer(client, "f", floats, model_version="9"),
        "bad version": lambda: infer(client, "f", floats, model_version="latest"),
        "unknown input": lambda: infer(client, "f", floats, name="z"),
        "no input": lambda: client.infer("f", [], client_timeout=10),
        "input twice": lambda: client.infer("f", [given("x", floats)] * 2, client_timeout=10),
        "wrong datatype": lambda: infer(client, "f", floats.astype(np.int32)),
        "wrong rank": lambda: infer(client, "f", floats.reshape(1, 2)),
        "unknown output": lambda: infer(client, "f", floats, outputs=[triton.InferRequestedOutput("w")]),
        "classification": lambda: infer(client, "f", floats, outputs=[triton.InferRequestedOutput("y", class_count=2)]),
        "sequence": lambda: infer(client, "f", floats, sequence_id=7, sequence_start=True),
        "priority": lambda: infer(client, "f", floats, priority=1),
        "timeout": lambda: infer(client, "hangs", floats, timeout=200_000),
        "config": lambda: client.get_model_config("f"),
        "statistics": lambda: client.get_inference_statistics("f"),
        "index": client.get_model_repository_index,
        "load": lambda: client.load_model("f"),
        "unload": lambda: client.unload_model("f"),
        "shared memory": lambda: client.register_system_shared_memory("r", "/r", 8),
        "cuda shared memory": client.get_cuda_shared_memory_status,
        "trace settings": lambda: client.get_trace_settings("f"),
        "log settings": client.get_log_settings,
        "after all that": lambda: infer(client, "f", floats),
    }
    return {what: outcome(action) for what, action in actions.items()}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
