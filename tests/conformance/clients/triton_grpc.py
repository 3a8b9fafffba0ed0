"""tritonclient.grpc, unchanged: `python triton_grpc.py ADDRESS SCENARIO` prints ok, or fails where it stands."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from keyed import keyed
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

WAIT_S = 60.0
Client = Any


def given(name: str, array: np.ndarray, datatype: str) -> grpc.InferInput:
    tensor = grpc.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def numbers(rows: int = 1) -> tuple[np.ndarray, np.ndarray]:
    first = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    return first, np.full_like(first, 3)


def simple_inputs(first: np.ndarray, second: np.ndarray) -> list[grpc.InferInput]:
    return [given("INPUT0", first, "INT32"), given("INPUT1", second, "INT32")]


def check_simple(result: grpc.InferResult, first: np.ndarray, second: np.ndarray) -> None:
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)


def unary(client: Client) -> None:
    for rows in (1, 8):
        first, second = numbers(rows)
        outputs = [grpc.InferRequestedOutput("OUTPUT0"), grpc.InferRequestedOutput("OUTPUT1")]
        result = client.infer("simple", simple_inputs(first, second), outputs=outputs, request_id="1")
        check_simple(result, first, second)
        assert result.get_response().id == "1"
    result = client.infer("simple", simple_inputs(first, second), outputs=[grpc.InferRequestedOutput("OUTPUT1")])
    assert result.as_numpy("OUTPUT0") is None
    texts = np.array([[str(n).encode() for n in range(16)]], dtype=np.object_)
    result = client.infer("simple_string", [given("INPUT0", texts, "BYTES"), given("INPUT1", texts, "BYTES")])
    assert result.as_numpy("OUTPUT0").tolist() == [[str(2 * n).encode() for n in range(16)]]
    words = np.array([[b"one", "zw\u00f6lf".encode(), b"", b"\x00\xff"]], dtype=np.object_)
    assert (
        client.infer("simple_identity", [given("INPUT0", words, "BYTES")]).as_numpy("OUTPUT0").tolist()
        == words.tolist()
    )
    result = client.infer(
        "simple", simple_inputs(*numbers()), outputs=[grpc.InferRequestedOutput("OUTPUT0", class_count=2)]
    )
    assert result.as_numpy("OUTPUT0").tolist() == [[b"18:15", b"17:14"]]
    done: queue.Queue[Any] = queue.Queue(8)
    for _ in range(8):
        client.async_infer("simple", simple_inputs(first, second), lambda result, error: done.put((result, error)))
    for _ in range(8):
        result, error = done.get(timeout=WAIT_S)
        assert error is None, error
        check_simple(result, first, second)


def stream(client: Client) -> None:
    """Ordinary functions on a stream: answers in order, failures in band."""
    done: queue.Queue[Any] = queue.Queue(200)
    client.start_stream(lambda result, error: done.put((result, error)))
    for number in range(100):
        first, second = numbers()
        client.async_stream_infer("simple", simple_inputs(first + number, second), request_id=str(number))
    for number in range(100):
        result, error = done.get(timeout=WAIT_S)
        assert error is None, error
        assert result.get_response().id == str(number)
        check_simple(result, first + number, second)
    client.async_stream_infer("nobody", simple_inputs(first, second))
    result, error = done.get(timeout=WAIT_S)
    assert (result, error.message()) == (None, "Request for unknown model: 'nobody' is not found")
    client.async_stream_infer("simple", simple_inputs(first, second))
    check_simple(done.get(timeout=WAIT_S)[0], first, second)
    client.stop_stream()


def decoupled(client: Client) -> None:
    """repeat_int32: as many responses as numbers, with and without an empty final one."""
    assert client.get_model_config("repeat_int32").config.model_transaction_policy.decoupled
    done: queue.Queue[Any] = queue.Queue(200)
    client.start_stream(lambda result, error: done.put((result, error)))
    for count, final in ((4, False), (0, True), (3, True)):
        inputs = repeat(count)
        client.async_stream_infer("repeat_int32", inputs, request_id="r", enable_empty_final_response=final)
        for position in range(count):
            result, error = done.get(timeout=WAIT_S)
            assert error is None, error
            response = result.get_response()
            assert not response.parameters["triton_final_response"].bool_param
            assert (response.id, result.as_numpy("OUT").tolist()) == ("r", [position + 100])
            assert result.as_numpy("IDX").tolist() == [position]
        if final:
            response = done.get(timeout=WAIT_S)[0].get_response()
            assert response.parameters["triton_final_response"].bool_param
            assert not response.outputs
    client.stop_stream()
    assert done.empty()
    assert client.infer("repeat_int32", repeat(1)).as_numpy("OUT").tolist() == [100]
    for count in (0, 2):
        refused(partial(client.infer, "repeat_int32", repeat(count)), "UNIMPLEMENTED", "decoupled")
    client.start_stream(lambda result, error: done.put((result, error)))
    client.async_stream_infer("repeat_int32", repeat(1000, delay_ms=1000))
    done.get(timeout=WAIT_S)
    client.stop_stream(cancel_requests=True)


def repeat(count: int, delay_ms: int = 1) -> list[grpc.InferInput]:
    return [
        given("IN", np.arange(100, 100 + count, dtype=np.int32), "INT32"),
        given("DELAY", np.full(count, delay_ms, np.uint32), "UINT32"),
        given("WAIT", np.zeros(1, np.uint32), "UINT32"),
    ]


def sequence(client: Client) -> None:
    """Two sequences on one stream, each adding its own numbers up; ids are numbers and strings."""
    done: queue.Queue[Any] = queue.Queue(200)
    client.start_stream(lambda result, error: done.put((result, error)))
    count = 20
    for number in range(1, count + 1):
        for name, factor in ((7, 1), ("text", -1)):
            client.async_stream_infer(
                "totals",
                [given("INPUT", np.array([number * factor], np.int32), "INT32")],
                request_id=f"{name}_{number}",
                sequence_id=name,
                sequence_start=number == 1,
                sequence_end=number == count,
            )
    for _ in range(2 * count):
        result, error = done.get(timeout=WAIT_S)
        assert error is None, error
        name, _, position = result.get_response().id.partition("_")
        total = sum(range(1, int(position) + 1))
        assert result.as_numpy("OUTPUT").tolist() == [total if name == "7" else -total]
    client.stop_stream()
    refused(
        lambda: client.infer("totals", [given("INPUT", np.array([1], np.int32), "INT32")], sequence_id=9),
        "INVALID_ARGUMENT",
        "not started",
    )


def shared_memory(client: Client) -> None:
    """Inputs read from regions, outputs written into them, also texts; and what goes wrong."""
    import tritonclient.utils.shared_memory as shm

    client.unregister_system_shared_memory()
    first, second = numbers(2)
    size = first.nbytes
    ins = shm.create_shared_memory_region("inputs", "/rouse_conformance_in", 2 * size)
    outs = shm.create_shared_memory_region("outputs", "/rouse_conformance_out", 2 * size)
    try:
        shm.set_shared_memory_region(ins, [first, second])
        client.register_system_shared_memory("inputs", "/rouse_conformance_in", 2 * size)
        client.register_system_shared_memory("outputs", "/rouse_conformance_out", 2 * size)
        status = client.get_system_shared_memory_status(as_json=True)["regions"]
        assert sorted(status) == ["inputs", "outputs"]
        inputs = []
        for number in range(2):
            tensor = grpc.InferInput(f"INPUT{number}", [2, 16], "INT32")
            tensor.set_shared_memory("inputs", size, offset=number * size)
            inputs.append(tensor)
        outputs = [grpc.InferRequestedOutput(f"OUTPUT{number}") for number in range(2)]
        outputs[0].set_shared_memory("outputs", size)
        outputs[1].set_shared_memory("outputs", size, offset=size)
        result = client.infer("simple", inputs, outputs=outputs)
        assert result.get_output("OUTPUT0").shape == [2, 16]
        np.testing.assert_array_equal(shm.get_contents_as_numpy(outs, np.int32, [2, 16]), first + second)
        found = shm.get_contents_as_numpy(outs, np.int32, [2, 16], offset=size)
        np.testing.assert_array_equal(found, first - second)
        # One input within the request, one output within the response.
        mixed = [inputs[0], given("INPUT1", second, "INT32")]
        result = client.infer("simple", mixed, outputs=[outputs[0], grpc.InferRequestedOutput("OUTPUT1")])
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)

        words = np.array([[b"one", b"", "zw\u00f6lf".encode()]], dtype=np.object_)
        packed = b"".join(len(word).to_bytes(4, "little") + word for word in words.ravel())
        shm.set_shared_memory_region(ins, [serialize_byte_tensor(words)])
        text = grpc.InferInput("INPUT0", [1, 3], "BYTES")
        text.set_shared_memory("inputs", len(packed))
        into = grpc.InferRequestedOutput("OUTPUT0")
        into.set_shared_memory("outputs", 2 * size)
        client.infer("simple_identity", [text], outputs=[into])
        assert shm.get_contents_as_numpy(outs, np.object_, [1, 3]).tolist() == words.tolist()
        client.unregister_system_shared_memory("inputs")
        assert sorted(client.get_system_shared_memory_status(as_json=True)["regions"]) == ["outputs"]
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status(as_json=True)
    finally:
        shm.destroy_shared_memory_region(ins)
        shm.destroy_shared_memory_region(outs)


def shared_memory_errors(client: Client) -> None:
    import tritonclient.utils.shared_memory as shm

    first, second = numbers(2)
    size, key = first.nbytes, "/rouse_conformance_bad"
    region = shm.create_shared_memory_region("bad", key, 2 * size)
    try:
        client.register_system_shared_memory("bad", key, 2 * size)
        small = grpc.InferRequestedOutput("OUTPUT0")
        small.set_shared_memory("bad", 4)
        refused(
            lambda: client.infer("simple", simple_inputs(first, second), outputs=[small]),
            "INVALID_ARGUMENT",
            "too small",
        )
        beyond = grpc.InferInput("INPUT0", [2, 16], "INT32")
        beyond.set_shared_memory("bad", size, offset=2 * size)
        inputs = [beyond, given("INPUT1", second, "INT32")]
        refused(lambda: client.infer("simple", inputs), "INVALID_ARGUMENT", "not within")
        refused(lambda: client.register_system_shared_memory("bad", key, size), "ALREADY_EXISTS", "already in manager")
        refused(lambda: client.register_system_shared_memory("long", key, 3 * size), "INVALID_ARGUMENT", "byte size")
        refused(lambda: client.register_system_shared_memory("no", "/rouse_none", 8), "NOT_FOUND", "Unable to open")
        refused(lambda: client.get_system_shared_memory_status("no"), "NOT_FOUND", "Unable to find")
        client.unregister_system_shared_memory("bad")
        refused(lambda: client.infer("simple", inputs), "NOT_FOUND", "Unable to find system shared memory region")
    finally:
        shm.destroy_shared_memory_region(region)


def statistics(client: Client) -> None:
    """Figures rise by exactly what is asked, and add up."""

    def figures() -> Any:
        (row,) = client.get_inference_statistics("simple", "1").model_stats
        return row

    assert "statistics" in client.get_server_metadata().extensions
    before, count, rows = figures(), 12, 3
    for _ in range(count):
        client.infer("simple", simple_inputs(*numbers(rows)))
    after = figures()
    gained = after.inference_stats.success.count - before.inference_stats.success.count
    assert gained == count, gained
    assert after.inference_count - before.inference_count == count * rows
    assert 0 < after.execution_count - before.execution_count <= count
    stats = after.inference_stats
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert getattr(stats, part).count - getattr(before.inference_stats, part).count == count, part
    assert stats.compute_infer.ns > before.inference_stats.compute_infer.ns
    assert (
        stats.success.ns - before.inference_stats.success.ns
        >= stats.compute_infer.ns - before.inference_stats.compute_infer.ns
    )
    assert after.last_inference >= before.last_inference > 0 or before.last_inference == 0
    executions = sum(batch.compute_infer.count for batch in after.batch_stats)
    assert executions == after.execution_count
    names = {row.name for row in client.get_inference_statistics().model_stats}
    assert {"simple", "simple_string", "simple_identity", "repeat_int32"} <= names


def descriptions(client: Client) -> None:
    """Metadata, configuration, repository, settings."""
    metadata = client.get_model_metadata("simple", as_json=True)
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": ["-1", "16"]}
    config = client.get_model_config("simple").config
    assert (config.max_batch_size, list(config.input[0].dims)) == (8, [16])
    assert client.get_model_config("simple_string", as_json=True)["config"]["input"][0]["data_type"] == "TYPE_STRING"
    client.load_model("simple_string")

    def state() -> str:
        rows = client.get_model_repository_index().models
        return next(row.state for row in rows if row.name == "simple_string")

    assert state() == "READY"
    client.unload_model("simple_string")
    assert state() == "UNAVAILABLE"
    assert client.is_model_ready("simple_string"), "a request wakes it"
    client.load_model("simple_string")
    assert state() == "READY"
    assert client.get_trace_settings(as_json=True)["settings"]["trace_level"]["value"] == ["TIMESTAMPS"]
    changed = client.update_trace_settings(settings={"trace_rate": "2"}, as_json=True)["settings"]
    assert changed["trace_rate"]["value"] == ["2"]
    client.update_trace_settings(settings={"trace_rate": None})
    assert client.update_log_settings({"log_verbose_level": 1}).settings["log_verbose_level"].uint32_param == 1
    client.update_log_settings({"log_verbose_level": 0})


def errors(client: Client) -> None:
    first, second = numbers()
    wrong = [given("INPUT0", first.astype(np.float32), "FP32"), given("INPUT1", second, "INT32")]
    table: dict[str, tuple[Callable[[], Any], str, str]] = {
        "unknown model": (
            lambda: client.infer("nobody", simple_inputs(first, second)),
            "NOT_FOUND",
            "Request for unknown model: 'nobody' is not found",
        ),
        "unknown version": (lambda: client.infer("simple", simple_inputs(first, second), "9"), "NOT_FOUND", "9"),
        "bad version": (
            lambda: client.infer("simple", simple_inputs(first, second), "x"),
            "INVALID_ARGUMENT",
            "digits",
        ),
        "missing input": (
            lambda: client.infer("simple", simple_inputs(first, second)[:1]),
            "INVALID_ARGUMENT",
            "INPUT1",
        ),
        "wrong datatype": (lambda: client.infer("simple", wrong), "INVALID_ARGUMENT", "FP32"),
        "wrong shape": (
            lambda: client.infer("simple", simple_inputs(first[:, :8], second)),
            "INVALID_ARGUMENT",
            "[1, 8]",
        ),
        "too many rows": (lambda: client.infer("simple", simple_inputs(*numbers(9))), "INVALID_ARGUMENT", "8"),
        "unknown output": (
            lambda: client.infer(
                "simple", simple_inputs(first, second), outputs=[grpc.InferRequestedOutput("OUTPUT7")]
            ),
            "INVALID_ARGUMENT",
            "OUTPUT7",
        ),
        "unknown config": (lambda: client.get_model_config("nobody"), "NOT_FOUND", "nobody"),
        "unknown statistics": (lambda: client.get_inference_statistics("nobody"), "NOT_FOUND", "nobody"),
        "unknown load": (lambda: client.load_model("nobody"), "NOT_FOUND", "nobody"),
        "cuda": (lambda: client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 8), "UNIMPLEMENTED", "GPU"),
        "timeout": (lambda: client.infer("repeat_int32", repeat(1, 20_000), timeout=200_000), "DEADLINE_EXCEEDED", ""),
        "the function's own": (
            lambda: client.infer(
                "simple_string", [given(f"INPUT{n}", np.full((1, 16), b"x", object), "BYTES") for n in (0, 1)]
            ),
            "INTERNAL",
            "ValueError",
        ),
    }
    for what, (action, status, words) in table.items():
        refused(action, status, words, what)
    check_simple(client.infer("simple", simple_inputs(first, second)), first, second)


def refused(action: Callable[[], Any], status: str, words: str, what: str = "") -> None:
    caught: Any = None
    try:
        action()
    except InferenceServerException as error:
        caught = error
    assert caught is not None, f"{what}: it was accepted"
    assert caught.status() == f"StatusCode.{status}", f"{what}: {caught}"
    assert words in caught.message(), f"{what}: {caught}"


SCENARIOS = (
    unary, stream, decoupled, sequence, shared_memory, shared_memory_errors, statistics, descriptions, errors,
)  # fmt: skip

if __name__ == "__main__":
    with grpc.InferenceServerClient(sys.argv[1]) as client:
        next(scenario for scenario in SCENARIOS if scenario.__name__ == sys.argv[2])(keyed(client, "grpc"))
    print("ok")
