"""tritonclient, unchanged and in a process of its own, against a whole mesh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function, write_linear

SYNCHRONOUS = """
import sys
import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

client = grpc.InferenceServerClient(sys.argv[1])
assert client.is_server_live() and client.is_server_ready()
assert client.is_model_ready("lin") and client.is_model_ready("lin", "1")
assert not client.is_model_ready("nobody")
metadata = client.get_model_metadata("lin", as_json=True)
assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "64"]}], metadata
assert client.get_server_metadata().name == "rouse"

x = np.random.default_rng(0).standard_normal((3, 64), dtype=np.float32)
given = grpc.InferInput("x", x.shape, "FP32")
given.set_data_from_numpy(x)
answer = client.infer("lin", [given], request_id="seventeen", outputs=[grpc.InferRequestedOutput("y")])
assert answer.get_response().id == "seventeen"
np.save(sys.argv[2], answer.as_numpy("y"))

words = np.array([b"one", "zw\\u00f6lf".encode(), b"", b"\\x00\\xff"], dtype=object)
given = grpc.InferInput("text", words.shape, "BYTES")
given.set_data_from_numpy(words)
assert client.infer("echo", [given]).as_numpy("text").tolist() == words.tolist()

for name, text, code in (
    ("nobody", "Request for unknown model: 'nobody' is not found", "StatusCode.NOT_FOUND"),
    ("lin", "", "StatusCode.INVALID_ARGUMENT"),
):
    bad = grpc.InferInput("x", [1, 3], "FP32")
    bad.set_data_from_numpy(np.zeros((1, 3), np.float32))
    try:
        client.infer(name, [bad])
        raise SystemExit(f"{name} was accepted")
    except InferenceServerException as error:
        assert error.status() == code, error
        assert text in error.message(), error

print("ok")
"""

ASYNCHRONOUS = """
import asyncio, sys
import numpy as np
import tritonclient.grpc.aio as grpc

async def main():
    async with grpc.InferenceServerClient(sys.argv[1]) as client:
        async def one(seed):
            x = np.full((1, 64), seed, np.float32)
            given = grpc.InferInput("x", x.shape, "FP32")
            given.set_data_from_numpy(x)
            return (await client.infer("lin", [given])).as_numpy("y")

        answers = await asyncio.gather(*(one(seed) for seed in range(20)))
        for seed, answer in enumerate(answers):
            np.testing.assert_allclose(answer, answers[1] * seed, rtol=1e-4, atol=1e-4)
    print("ok")

asyncio.run(main())
"""

ECHO = """
    class Function:
        def load(self, context):
            pass

        def predict(self, inputs):
            return {"text": inputs["text"]}
"""


@pytest.fixture(scope="module")
def served(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    client = mesh.client()
    client.deploy(write_linear(tmp_path_factory.mktemp("lin"), "lin", 64, 0))
    text = [("text", "BYTES", [-1])]
    client.deploy(write_function(tmp_path_factory.mktemp("echo"), "echo", ECHO, text, text))
    return mesh


@pytest.mark.parametrize("program", [SYNCHRONOUS, ASYNCHRONOUS], ids=["grpc", "grpc.aio"])
def test_the_client_works_unchanged(served: Mesh, tmp_path: Path, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, served.gateway_address, str(tmp_path / "y.npy")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "ok"
