"""Both clients against a gRPC server: deploying, calling, watching, failing."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import rouse
from rouse_contracts import functions as contract
from rouse_contracts.status import ErrorDetails

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_deploy_uploads_in_chunks_and_wakes(client: rouse.Client, double: Any, folder: Path) -> None:
    seen: list[rouse.Progress] = []
    done = client.deploy(folder, progress=seen.append)

    assert (done.function, done.version.version, done.state, done.files) == ("digits", 1, "READY", 4)
    assert done.uploaded_bytes == done.total_bytes == sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert [1 << 20, 1 << 20, 1 << 19] in double.uploads
    spec = double.deployed[0].spec
    assert spec.handler == "function:Function"
    assert dict(spec.options) == {"depth": "3"}
    assert spec.resources.working_memory_bytes == 2 << 20
    assert spec.scaling.idle_timeout.ToMilliseconds() == 12_500
    assert [file.path for file in double.deployed[0].files] == [
        "function.py", "parts/empty.txt", "rouse.toml", "weights.safetensors",
    ]  # fmt: skip
    stages = list(dict.fromkeys(p.stage for p in seen))
    assert stages == ["hash", "upload", "deploy", "wake", "traffic", "done"]
    last_upload = [p for p in seen if p.stage == "upload"][-1]
    assert last_upload.done_bytes == last_upload.total_bytes == done.uploaded_bytes


def test_second_deploy_sends_only_what_changed(client: rouse.Client, double: Any, folder: Path) -> None:
    client.deploy(folder)
    (folder / "function.py").write_text("class Function:\n    changed = True\n")
    done = client.deploy(folder, wake=False)
    assert done.uploaded_bytes == (folder / "function.py").stat().st_size
    assert done.version.version == 2
    assert done.state == "DEPLOYED"
    assert double.calls["WakeFunction"] == 1


def test_equal_files_are_sent_once(client: rouse.Client, double: Any, folder: Path) -> None:
    (folder / "again.safetensors").write_bytes((folder / "weights.safetensors").read_bytes())
    client.deploy(folder)
    assert double.calls["UploadBlob"] == 4
    assert len(double.deployed[0].files) == 5


def test_deploy_starts_over_where_a_blob_vanished(client: rouse.Client, double: Any, folder: Path) -> None:
    double.fail("DeployFunction", grpc.StatusCode.FAILED_PRECONDITION, "gone", ErrorDetails("BLOB_MISSING"))
    assert client.deploy(folder).version.version == 1
    assert double.calls["FindMissingBlobs"] == 2


def test_load_error_shows_at_deploy(client: rouse.Client, double: Any, folder: Path) -> None:
    details = ErrorDetails("LOAD_FAILED", {"function": "digits"})
    double.fail("WakeFunction", grpc.StatusCode.FAILED_PRECONDITION, "ValueError: no such layer", details)
    with pytest.raises(rouse.FailedPrecondition, match="no such layer") as caught:
        client.deploy(folder)
    assert caught.value.reason == "LOAD_FAILED"
    assert "rouse logs digits" in caught.value.hint
    assert "digits" in double.functions


def test_a_version_that_does_not_load_gets_no_traffic(client: rouse.Client, double: Any, folder: Path) -> None:
    client.deploy(folder)
    (folder / "function.py").write_text("raise ValueError")
    details = ErrorDetails("LOAD_FAILED", {"function": "digits"})
    double.fail("WakeFunction", grpc.StatusCode.FAILED_PRECONDITION, "ValueError (at function.py:1)", details)
    with pytest.raises(rouse.FailedPrecondition, match="version 2 got no traffic") as caught:
        client.deploy(folder)
    assert caught.value.metadata["version"] == "2"
    function = client.describe("digits").function
    assert function.traffic == {1: 100}
    assert function.version is not None
    assert function.version.version == 1


def test_a_deployment_is_repeated_as_itself(client: rouse.Client, double: Any, folder: Path) -> None:
    for method in ("DeployFunction", "WakeFunction", "SetTraffic"):
        double.fail(method, grpc.StatusCode.UNAVAILABLE, "away", ErrorDetails("DATABASE_DOWN", {}, 0.01), times=2)
    done = client.deploy(folder)
    assert (done.version.version, done.unchanged) == (1, False)
    ids = {r.deployment_id for r in double.requests if hasattr(r, "deployment_id")}
    assert len(ids) == 1
    assert double.calls["DeployFunction"] == double.calls["SetTraffic"] == 3


def test_what_did_not_change_makes_no_version_unless_told_to(client: rouse.Client, folder: Path) -> None:
    client.deploy(folder)
    again = client.deploy(folder)
    assert (again.version.version, again.unchanged, again.uploaded_bytes) == (1, True, 0)
    forced = client.deploy(folder, force=True)
    assert (forced.version.version, forced.unchanged) == (2, False)
    other = client.deploy(folder, description="new words", traffic=False)
    assert (other.version.version, other.unchanged, other.state) == (3, False, "READY")
    assert client.describe("digits").function.traffic == {2: 100}


def test_traffic_is_set_and_rolled_back(client: rouse.Client, folder: Path) -> None:
    for _ in range(2):
        client.deploy(folder, force=True)
    function = client.set_traffic("digits", {1: 90, 2: 10})
    assert function.traffic == {1: 90, 2: 10}
    assert function.version is not None
    assert (function.version.version, function.tenant) == (1, "default")
    assert client.roll_back("digits").traffic == {1: 100}
    assert client.set_traffic("digits", {}).traffic == {2: 100}
    assert client.sleep("digits").name == "digits"
    assert client.wake("digits", version=1).name == "digits"
    with pytest.raises(rouse.NotFound):
        client.roll_back("nobody")


def test_deploy_out_of_time_says_what_for(client: rouse.Client, folder: Path) -> None:
    with pytest.raises(rouse.DeadlineExceeded, match="digits"):
        client.deploy(folder, timeout=0)


def test_failed_upload_is_raised(client: rouse.Client, double: Any, folder: Path) -> None:
    double.fail("UploadBlob", grpc.StatusCode.RESOURCE_EXHAUSTED, "disk full", ErrorDetails("DISK_FULL"), times=9)
    with pytest.raises(rouse.ResourceExhausted, match="disk full"):
        client.deploy(folder)
    assert not double.functions


async def test_failed_upload_is_raised_by_the_async_client(address: str, double: Any, folder: Path) -> None:
    double.fail("UploadBlob", grpc.StatusCode.RESOURCE_EXHAUSTED, "disk full", ErrorDetails("DISK_FULL"), times=9)
    async with rouse.AsyncClient(address) as client:
        with pytest.raises(rouse.ResourceExhausted, match="disk full"):
            await client.deploy(folder)


def test_file_that_shrank_while_deploying(client: rouse.Client, double: Any, folder: Path) -> None:
    package = rouse.read_package(folder)

    def shrink(progress: rouse.Progress) -> None:
        if progress.stage == "upload" and progress.done_bytes == 0:
            (folder / "weights.safetensors").write_bytes(b"short")

    with pytest.raises(rouse.InvalidArgument) as caught:
        client.deploy(package, progress=shrink)
    assert caught.value.reason in ("UPLOAD_TRUNCATED", "HASH_MISMATCH")


def test_file_that_vanished_while_deploying(client: rouse.Client, folder: Path) -> None:
    def remove(progress: rouse.Progress) -> None:
        if progress.stage == "upload" and progress.done_bytes == 0:
            (folder / "weights.safetensors").unlink(missing_ok=True)

    with pytest.raises(rouse.PackageError, match=r"weights\.safetensors cannot be read"):
        client.deploy(folder, progress=remove)


def test_infer_casts_lists_and_keeps_arrays(client: rouse.Client, double: Any, folder: Path) -> None:
    client.deploy(folder)
    result = client.infer("digits", {"image": [[1, 2], [3, 4]]}, request_id="r-1")
    assert result["image"].dtype == np.float32
    assert result["image"].tolist() == [[1, 2], [3, 4]]
    assert (result.trace_id, result.node, result.device, result.request_id) == (TRACE, "node-1", "gpu0", "r-1")
    assert result.timings == rouse.Timings(queue_ms=0.5, swap_ms=2.0, execute_ms=1.5, total_ms=4.25)
    assert dict(result).keys() == {"image"}

    client.infer("digits", {"image": [[5, 6]]})
    assert double.calls["GetFunction"] == 1, "the signature is asked for once"
    assert client.infer("digits", {"image": np.ones((1, 2))})["image"].dtype == np.float64


def test_infer_sends_what_is_asked(client: rouse.Client, double: Any, folder: Path) -> None:
    client.deploy(folder)
    double.compute = lambda inputs: {"a": np.zeros(1), "b": np.ones(1)}
    assert list(client.infer("digits", {"image": np.ones(1)}, ["b"], version=3)) == ["b"]
    assert double.requests[-1].version == "3"


def test_infer_says_what_goes_with_a_request(client: rouse.Client, double: Any, folder: Path) -> None:
    client.deploy(folder)
    client.infer(
        "digits", {"image": np.ones(1)}, idempotency_key="k", priority=2, sequence_id=7, sequence_start=True,
        parameters={"deep": True, "depth": -3, "wide": 1 << 63, "heat": 0.5, "style": "plain"},
    )  # fmt: skip
    sent = double.requests[-1]
    assert (sent.idempotency_key, sent.request_id, sent.options.priority) == ("k", "", 2)
    assert sent.options.sequence == contract.Sequence(id="7", start=True)
    assert {name: getattr(p, p.WhichOneof("value")) for name, p in sent.options.parameters.items()} == {
        "deep": True, "depth": -3, "wide": 1 << 63, "heat": 0.5, "style": "plain"
    }  # fmt: skip
    client.infer("digits", {"image": np.ones(1)})
    assert not double.requests[-1].HasField("options")


@pytest.mark.parametrize(
    "said",
    [{"priority": -1}, {"sequence_start": True}, {"parameters": {"n": 1 << 64}}, {"parameters": {"n": [1]}}],
    ids=str,
)
def test_what_no_request_can_say_is_refused_before_it_is_sent(
    client: rouse.Client, double: Any, said: dict[str, Any]
) -> None:
    with pytest.raises(rouse.InvalidArgument) as refused:
        client.infer("digits", {"image": np.ones(1)}, **said)
    assert refused.value.reason == "BAD_PARAMETER"
    assert double.calls["Infer"] == 0


def test_with_an_idempotency_key_a_request_is_tried_again(client: rouse.Client, double: Any, folder: Path) -> None:
    client.deploy(folder)
    double.fail("Infer", grpc.StatusCode.UNAVAILABLE, "gone", ErrorDetails("NO_INSTANCE"), times=2)
    client.infer("digits", {"image": np.ones(2)}, idempotency_key="once")
    assert double.calls["Infer"] == 3
    assert {request.idempotency_key for request in double.requests[-3:]} == {"once"}


def test_stream_yields_responses_as_they_come(client: rouse.Client, double: Any) -> None:
    found = client.stream("counting", {"x": np.ones(1)}, parameters={"count": 3})
    assert [result["n"].tolist() for result in found] == [[0], [1], [2]]
    endless = client.stream("counting", {"x": np.ones(1)}, request_id="endless", parameters={"count": 2})
    assert next(endless)["n"].tolist() == [0]
    endless.close()
    assert double.follow_ended.wait(10), "the mesh was not told that nobody reads any more"


def test_infer_is_never_repeated(client: rouse.Client, double: Any, folder: Path) -> None:
    client.deploy(folder)
    details = ErrorDetails("EXECUTOR_LOST", {"function": "digits", "node": "node-1"}, 0.25)
    double.fail("Infer", grpc.StatusCode.UNAVAILABLE, "the instance died", details)
    with pytest.raises(rouse.Unavailable) as caught:
        client.infer("digits", {"image": np.ones(2)})
    assert double.calls["Infer"] == 1
    assert not isinstance(caught.value, rouse.Unreachable)
    assert caught.value.metadata["node"] == "node-1"
    assert caught.value.retry_after_s == 0.25
    assert "0.25 s" in caught.value.hint


def test_reads_are_tried_again(client: rouse.Client, double: Any) -> None:
    details = ErrorDetails("NOT_READY")
    double.fail("ListFunctions", grpc.StatusCode.UNAVAILABLE, "starting", details, times=2)
    assert client.functions() == []
    double.fail("ListFunctions", grpc.StatusCode.UNAVAILABLE, "starting", details, times=3)
    with pytest.raises(rouse.Unavailable):
        client.functions()
    assert double.calls["ListFunctions"] == 6


def test_describe_and_delete(client: rouse.Client, folder: Path) -> None:
    client.deploy(folder)
    found = client.describe("digits")
    assert found.function.version is not None
    assert found.function.version.inputs == (rouse.TensorSpec("image", "FP32", (-1, 2)),)
    assert found.function.version.scaling.idle_timeout_s == 12.5
    assert found.residency[0].reason == "evicted from gpu0 for bert"
    assert found.usage.requests == 7
    assert found.events[0].at is not None
    assert found.events[0].at.year == 2023
    client.delete("digits")
    with pytest.raises(rouse.NotFound) as caught:
        client.describe("digits")
    assert caught.value.reason == "FUNCTION_NOT_FOUND"
    assert caught.value.metadata == {"function": "digits"}


def test_usage_is_grouped_as_asked(client: rouse.Client) -> None:
    assert [(row.tenant, row.function, row.usage.requests) for row in client.usage()] == [
        ("acme", "digits", 7), ("", "digits", 2)
    ]  # fmt: skip
    assert client.usage(by="tenant")[0].function == ""
    with pytest.raises(rouse.InvalidArgument):
        client.usage(by="day")


def test_status_adds_up(client: rouse.Client) -> None:
    device = client.status().nodes[0].devices[0]
    assert device.mapped_bytes + device.reserved_bytes + device.free_bytes == device.capacity_bytes


def test_unreachable_says_where_and_what_next() -> None:
    with rouse.Client("127.0.0.1:1", timeout=5) as client, pytest.raises(rouse.Unreachable) as caught:
        client.functions()
    assert "127.0.0.1:1" in str(caught.value)
    assert "rouse up" in caught.value.hint


def test_timeout_is_typed(client: rouse.Client, double: Any, folder: Path) -> None:
    client.deploy(folder)
    release = threading.Event()

    def late(inputs: dict[str, Any]) -> dict[str, Any]:
        release.wait(20)
        return inputs

    double.compute = late
    try:
        with pytest.raises(rouse.DeadlineExceeded, match="in time") as caught:
            client.infer("digits", {"image": np.ones(2)}, timeout=0.2)
        assert "rouse describe digits" in caught.value.hint
    finally:
        release.set()


def test_logs_and_follow(client: rouse.Client, double: Any) -> None:
    double.lines = [f"line {n}" for n in range(5)]
    assert list(client.logs("digits", tail=2)) == ["line 3", "line 4"]
    lines = client.logs("digits", tail=5, follow=True)
    assert next(lines) == "line 0"
    lines.close()
    assert double.follow_ended.wait(10), "leaving the loop ends the call"


def test_trace_waits_for_its_parents(client: rouse.Client, double: Any) -> None:
    spans = double.add_trace(TRACE)
    double.spans[TRACE] = spans[1:]
    arrived = threading.Timer(0.3, lambda: double.spans.update({TRACE: spans}))
    arrived.start()
    found = client.trace(TRACE, settle=10)
    arrived.join()
    assert [span.span_id for span in found] == ["01", "02", "03", "04", "05", "06", "07"]
    assert found[4].duration_ms == pytest.approx(53)


def test_trace_that_ended_just_now_settles(client: rouse.Client, double: Any) -> None:
    double.add_trace(TRACE, ended_s=time.time())
    client.trace(TRACE)
    assert double.calls["GetTrace"] > 1


def test_trace_not_found_and_incomplete(client: rouse.Client, double: Any) -> None:
    with pytest.raises(rouse.NotFound):
        client.trace("00" * 16, settle=0.2)
    double.spans[TRACE] = double.add_trace(TRACE)[1:]
    assert len(client.trace(TRACE, settle=0.2)) == 6, "what there is, after the wait"


def test_client_is_safe_in_threads(client: rouse.Client, folder: Path) -> None:
    client.deploy(folder)
    results: list[Any] = [None] * 8

    def call(index: int) -> None:
        results[index] = client.infer("digits", {"image": [[index, index]]})["image"].tolist()

    threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[[n, n]] for n in range(8)]


async def test_async_client_does_the_same(address: str, double: Any, folder: Path) -> None:
    async with rouse.AsyncClient(address) as client:
        done = await client.deploy(folder)
        assert done.uploaded_bytes == done.total_bytes
        results = await asyncio.gather(*(client.infer("digits", {"image": [[n, n]]}) for n in range(20)))
        assert [r["image"][0, 0] for r in results] == list(range(20))
        double.lines = ["one", "two"]
        assert [line async for line in client.logs()] == ["one", "two"]
        async for line in client.logs(follow=True):
            assert line == "one"
            break
        streamed = client.stream("counting", {"x": np.ones(1)}, parameters={"count": 2})
        assert [result["n"].tolist() async for result in streamed] == [[0], [1]]
        assert [f.name for f in await client.functions()] == ["digits"]
        with pytest.raises(rouse.NotFound):
            await client.infer("nothing", {"image": np.ones(1)})


async def test_async_client_leaves_the_loop_free(address: str, double: Any, folder: Path) -> None:
    """While a call waits for its answer, other tasks run."""
    async with rouse.AsyncClient(address) as client:
        await client.deploy(folder)
        release = threading.Event()

        def late(inputs: dict[str, Any]) -> dict[str, Any]:
            assert release.wait(20)
            return inputs

        double.compute = late
        call = asyncio.create_task(client.infer("digits", {"image": np.ones(2)}))
        assert len(await client.functions()) == 1
        assert not call.done()
        release.set()
        assert (await call)["image"].shape == (2,)
