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


def classes(client: triton.InferenceServerClient, array: np.ndarray) -> Any:
    outputs = [triton.InferRequestedOutput("y", class_count=2)]
    return [e.decode() for e in client.infer("f", [given("x", array)], outputs=outputs).as_numpy("y")]


def index(client: triton.InferenceServerClient) -> Any:
    rows = client.get_model_repository_index(as_json=True)["models"]
    return {row["name"]: row["state"] for row in rows}


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
        "classification": lambda: classes(client, floats),
        "sequence": lambda: infer(client, "f", floats, sequence_id=7, sequence_start=True),
        "priority": lambda: infer(client, "f", floats, priority=1),
        "parameters": lambda: infer(client, "f", floats, parameters={"depth": 3, "name": "ü", "exact": True}),
        "timeout": lambda: infer(client, "hangs", floats, timeout=200_000),
        "config": lambda: client.get_model_config("f", as_json=True)["config"],
        "batched config": lambda: client.get_model_config("halves", as_json=True)["config"],
        "unknown config": lambda: client.get_model_config("nobody"),
        "statistics": lambda: client.get_inference_statistics("f", as_json=True)["model_stats"],
        "all statistics": lambda: [row["name"] for row in client.get_inference_statistics(as_json=True)["model_stats"]],
        "unknown statistics": lambda: client.get_inference_statistics("nobody"),
        "index": lambda: index(client),
        "load with a config": lambda: client.load_model("f", config="{}"),
        "unload": lambda: client.unload_model("f"),
        "index after": lambda: index(client),
        "load": lambda: client.load_model("f"),
        "index again": lambda: index(client),
        "unload unknown": lambda: client.unload_model("nobody"),
        "load unknown": lambda: client.load_model("nobody"),
        "shared memory": lambda: client.register_system_shared_memory("r", "/rouse-no-such-memory", 8),
        "shared memory path": lambda: client.register_system_shared_memory("r", "/../etc/passwd", 8),
        "shared memory status": lambda: client.get_system_shared_memory_status(as_json=True),
        "cuda status": lambda: client.get_cuda_shared_memory_status(as_json=True),
        "cuda register": lambda: client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 8),
        "cuda unregister": lambda: client.unregister_cuda_shared_memory("r"),
        "trace settings": lambda: client.get_trace_settings("f", as_json=True)["settings"],
        "trace off": lambda: client.update_trace_settings(settings={"trace_level": "OFF"}, as_json=True)["settings"],
        "trace default": lambda: client.update_trace_settings(settings={"trace_level": None}, as_json=True)["settings"],
        "trace file": lambda: client.update_trace_settings(settings={"trace_file": "/tmp/trace"}),
        "trace of a model": lambda: client.update_trace_settings("f", {"trace_rate": "5"}),
        "bad trace": lambda: client.update_trace_settings(settings={"trace_rate": "often"}),
        "log settings": lambda: client.get_log_settings(as_json=True)["settings"],
        "log verbose": lambda: client.update_log_settings({"log_verbose_level": 1}, as_json=True)["settings"],
        "log quiet again": lambda: client.update_log_settings({"log_verbose_level": 0}, as_json=True)["settings"],
        "log file": lambda: client.update_log_settings({"log_file": "elsewhere"}),
        "after all that": lambda: infer(client, "f", floats),
    }
    return {what: outcome(action) for what, action in actions.items()}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
