"""Whatever is wrong with an upload, a deployment or a request: one typed error, soon, and the next one is served."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

import rouse
from rouse_contracts import functions as pb
from rouse_contracts.status import decode_details
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function, write_identity

ONE_FLOAT = [("x", "FP32", [-1])], [("y", "FP32", [-1])]
X = {"x": np.arange(4, dtype=np.float32)}


@pytest.fixture(scope="module")
def stub(mesh: Mesh) -> Iterator[pb.FunctionServiceStub]:
    with grpc.insecure_channel(mesh.gateway_address) as channel:
        yield pb.FunctionServiceStub(channel)


@pytest.fixture(scope="module")
def identity(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    client = mesh.client()
    client.deploy(write_identity(tmp_path_factory.mktemp("f"), "plain"))
    yield "plain"
    np.testing.assert_array_equal(client.infer("plain", X)["y"], X["x"])
    client.delete("plain")


def refusal(call, *args) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, timeout=20)
    return caught.value.code(), decode_details(caught.value).reason


GOOD = pb.Tensor(name="x", datatype="FP32", shape=[2], data=bytes(8))
BAD_REQUESTS = {
    "unknown function": (pb.InferRequest(function="nobody", inputs=[GOOD]), grpc.StatusCode.NOT_FOUND),
    "empty name": (pb.InferRequest(inputs=[GOOD]), grpc.StatusCode.NOT_FOUND),
    "no input": (pb.InferRequest(function="plain"), grpc.StatusCode.INVALID_ARGUMENT),
    "unknown input": (
        pb.InferRequest(function="plain", inputs=[pb.Tensor(name="z", datatype="FP32", shape=[2], data=bytes(8))]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "input twice": (pb.InferRequest(function="plain", inputs=[GOOD, GOOD]), grpc.StatusCode.INVALID_ARGUMENT),
    "wrong dtype": (
        pb.InferRequest(function="plain", inputs=[pb.Tensor(name="x", datatype="INT32", shape=[2], data=bytes(8))]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "unknown dtype": (
        pb.InferRequest(function="plain", inputs=[pb.Tensor(name="x", datatype="FP7", shape=[2], data=bytes(8))]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "wrong rank": (
        pb.InferRequest(function="plain", inputs=[pb.Tensor(name="x", datatype="FP32", shape=[1, 2], data=bytes(8))]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "one byte short": (
        pb.InferRequest(function="plain", inputs=[pb.Tensor(name="x", datatype="FP32", shape=[2], data=bytes(7))]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "one byte long": (
        pb.InferRequest(function="plain", inputs=[pb.Tensor(name="x", datatype="FP32", shape=[2], data=bytes(9))]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "negative size": (
        pb.InferRequest(function="plain", inputs=[pb.Tensor(name="x", datatype="FP32", shape=[-2], data=bytes(8))]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "huge size": (
        pb.InferRequest(function="plain", inputs=[pb.Tensor(name="x", datatype="FP32", shape=[2**62], data=bytes(8))]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "unknown output": (
        pb.InferRequest(function="plain", inputs=[GOOD], output_names=["w"]),
        grpc.StatusCode.INVALID_ARGUMENT,
    ),
    "unknown version": (
        pb.InferRequest(function="plain", version="99", inputs=[GOOD]),
        grpc.StatusCode.NOT_FOUND,
    ),
}


@pytest.mark.parametrize("what", BAD_REQUESTS)
def test_a_bad_request_gets_its_typed_error(stub: pb.FunctionServiceStub, identity: str, what: str) -> None:
    request, code = BAD_REQUESTS[what]
    assert refusal(stub.Infer, request)[0] is code


def parts(digest: str, size: int, *chunks: bytes) -> Iterator[pb.UploadBlobRequest]:
    yield pb.UploadBlobRequest(header=pb.UploadBlobRequest.Header(digest=digest, size_bytes=size))
    for chunk in chunks:
        yield pb.UploadBlobRequest(chunk=chunk)


def test_bad_uploads_are_refused_and_nothing_is_kept(mesh: Mesh, stub: pb.FunctionServiceStub) -> None:
    data = b"weights" * 100
    digest = hashlib.sha256(data).hexdigest()
    before = mesh.footprint().object_bytes
    bad = grpc.StatusCode.INVALID_ARGUMENT
    assert refusal(stub.UploadBlob, parts(digest, len(data), data[:-1])) == (bad, "UPLOAD_TRUNCATED")
    assert refusal(stub.UploadBlob, parts(digest, len(data), data, b"x")) == (bad, "UPLOAD_TOO_LONG")
    assert refusal(stub.UploadBlob, parts(digest, len(data), b"W" + data[1:])) == (bad, "HASH_MISMATCH")
    assert refusal(stub.UploadBlob, parts("../../etc/passwd", len(data), data))[0] is bad
    assert list(stub.FindMissingBlobs(pb.FindMissingBlobsRequest(digests=[digest])).missing_digests) == [digest]
    assert mesh.footprint().object_bytes == before


def test_whoever_still_sends_when_an_upload_is_refused_hears_why(stub: pb.FunctionServiceStub) -> None:
    data = b"weights" * 100

    def refused(count: int) -> grpc.StatusCode:
        return refusal(stub.UploadBlob, parts("../../etc/passwd", len(data), *[data] * count))[0]

    # One in ten heard of an internal error: the gateway was writing when the repository's call ended.
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(refused, [1, 3, 20] * 50)) == {grpc.StatusCode.INVALID_ARGUMENT}


def upload(stub: pb.FunctionServiceStub, path: str, data: bytes) -> pb.ArtefactFile:
    digest = hashlib.sha256(data).hexdigest()
    stub.UploadBlob(parts(digest, len(data), data), timeout=20)
    return pb.ArtefactFile(path=path, digest=digest, size_bytes=len(data))


CODE = b"class F:\n    def load(self, context): ...\n    def predict(self, inputs): return inputs\n"
SPEC = pb.FunctionSpec(
    name="hostile",
    handler="f:F",
    signature=pb.Signature(
        inputs=[pb.TensorSpec(name="x", datatype="FP32", shape=[-1])],
        outputs=[pb.TensorSpec(name="x", datatype="FP32", shape=[-1])],
    ),
)


@pytest.mark.parametrize("path", ["weights.pt", "innocent.dat"])
def test_a_pickle_is_refused_by_name_and_by_content(stub: pb.FunctionServiceStub, path: str) -> None:
    files = [upload(stub, "f.py", CODE), upload(stub, path, pickle.dumps({"weights": [1.0, 2.0]}))]
    got = refusal(stub.DeployFunction, pb.DeployFunctionRequest(spec=SPEC, files=files))
    assert got == (grpc.StatusCode.INVALID_ARGUMENT, "PICKLE_REFUSED")


@pytest.mark.parametrize("path", ["../f.py", "/etc/f.py", "a/../../f.py", "a\x00b.py", "", "a\\..\\f.py"])
def test_a_path_out_of_the_artefact_is_refused(stub: pb.FunctionServiceStub, path: str) -> None:
    file = upload(stub, "f.py", CODE)
    file.path = path
    code, _ = refusal(stub.DeployFunction, pb.DeployFunctionRequest(spec=SPEC, files=[file]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("name", ["", "a/b", "../x", "x" * 200, "ünï", "-x"])
def test_a_bad_name_is_refused(stub: pb.FunctionServiceStub, name: str) -> None:
    spec = pb.FunctionSpec()
    spec.CopyFrom(SPEC)
    spec.name = name
    file = upload(stub, "f.py", CODE)
    code, _ = refusal(stub.DeployFunction, pb.DeployFunctionRequest(spec=spec, files=[file]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_files_that_were_never_uploaded_are_named(stub: pb.FunctionServiceStub) -> None:
    file = pb.ArtefactFile(path="f.py", digest="ab" * 32, size_bytes=3)
    got = refusal(stub.DeployFunction, pb.DeployFunctionRequest(spec=SPEC, files=[file]))
    assert got == (grpc.StatusCode.FAILED_PRECONDITION, "BLOB_MISSING")


def test_safetensors_that_lie_about_themselves_are_refused(stub: pb.FunctionServiceStub) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1000000],"data_offsets":[0,4000000]}}'
    lie = len(header).to_bytes(8, "little") + header + bytes(16)
    files = [upload(stub, "f.py", CODE), upload(stub, "weights.safetensors", lie)]
    got = refusal(stub.DeployFunction, pb.DeployFunctionRequest(spec=SPEC, files=files))
    assert got == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARTEFACT")


def test_a_function_that_raises_says_where_and_serves_on(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    code = """
        class Function:
            def load(self, context): ...

            def predict(self, inputs):
                if inputs["x"][0] < 0:
                    raise ValueError("negative, no")
                return {"y": inputs["x"]}
    """
    client.deploy(write_function(tmp_path / "f", "touchy", code, *ONE_FLOAT))
    for _ in range(2):
        with pytest.raises(rouse.RouseError) as caught:
            client.infer("touchy", {"x": np.full(2, -1, np.float32)})
        assert caught.value.reason == "FUNCTION_RAISED"
        assert "ValueError: negative, no" in caught.value.message
        assert "function.py" in caught.value.message
        np.testing.assert_array_equal(client.infer("touchy", X)["y"], X["x"])
    assert len(mesh.instance_pids("touchy")) == 1
    client.delete("touchy")


def test_a_function_that_returns_something_else_than_it_declares_fails_alone(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    code = """
        class Function:
            def load(self, context): ...

            def predict(self, inputs):
                return {"other": inputs["x"]} if inputs["x"][0] < 0 else {"y": inputs["x"]}
    """
    client.deploy(write_function(tmp_path / "f", "liar", code, *ONE_FLOAT))
    with pytest.raises(rouse.RouseError) as caught:
        client.infer("liar", {"x": np.full(2, -1, np.float32)})
    assert caught.value.reason == "BAD_RESULT"
    np.testing.assert_array_equal(client.infer("liar", X)["y"], X["x"])
    client.delete("liar")


def test_a_function_that_cannot_load_says_why_at_deploy_and_at_calls(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    code = """
        import module_that_is_not_there

        class Function: ...
    """
    folder = write_function(tmp_path / "f", "broken", code, *ONE_FLOAT)
    with pytest.raises(rouse.FailedPrecondition) as caught:
        client.deploy(folder)
    assert caught.value.reason == "LOAD_FAILED"
    assert "module_that_is_not_there" in caught.value.message
    with pytest.raises(rouse.FailedPrecondition) as caught:
        client.infer("broken", X, timeout=30)
    assert caught.value.reason == "LOAD_FAILED"
    client.delete("broken")


def test_a_slow_function_meets_the_caller_s_deadline_and_serves_the_next(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    code = """
        import time

        class Function:
            def load(self, context): ...

            def predict(self, inputs):
                time.sleep(float(inputs["x"][0]))
                return {"y": inputs["x"]}
    """
    client.deploy(write_function(tmp_path / "f", "slow", code, *ONE_FLOAT))
    with pytest.raises(rouse.DeadlineExceeded):
        client.infer("slow", {"x": np.array([2.0], np.float32)}, timeout=0.5)
    zero = np.zeros(1, np.float32)
    np.testing.assert_array_equal(client.infer("slow", {"x": zero}, timeout=30)["y"], zero)
    client.delete("slow")


def test_a_full_queue_refuses_with_a_time_to_retry(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    code = """
        import time

        class Function:
            def predict(self, inputs):
                time.sleep(3)
                return {"y": inputs["x"]}
    """
    folder = write_function(tmp_path / "f", "narrow", code, *ONE_FLOAT, settings="queue_capacity = 2")
    client.deploy(folder)
    outcomes: list[rouse.RouseError | str] = []

    def call() -> None:
        try:
            client.infer("narrow", X, timeout=60)
            outcomes.append("answered")
        except rouse.RouseError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    refused = [o for o in outcomes if isinstance(o, rouse.RouseError)]
    assert len(outcomes) == 12
    assert {r.reason for r in refused} == {"QUEUE_FULL"}
    assert all(r.retry_after_s and r.retry_after_s > 0 for r in refused)
    assert 2 <= outcomes.count("answered") <= 6
    client.delete("narrow")
