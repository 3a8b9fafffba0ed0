"""Clients of REST v2, unchanged and each in a process of its own, against a whole mesh; and what the OpenAPI
document says, held against what is served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function, write_identity

TRITON = Path(__file__).with_name("client_triton_http.py")
SIMPLE = """
    class Function:
        def load(self, context):
            pass

        def predict(self, inputs):
            a, b = inputs["INPUT0"], inputs["INPUT1"]
            return {"OUTPUT0": a + b, "OUTPUT1": a - b}
"""
ECHO = """
    class Function:
        def load(self, context):
            pass

        def predict(self, inputs):
            return {"OUTPUT0": inputs["INPUT0"]}
"""


@pytest.fixture(scope="module")
def served(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    client = mesh.client()
    numbers = (
        [(f"INPUT{n}", "INT32", [-1, 16]) for n in range(2)],
        [(f"OUTPUT{n}", "INT32", [-1, 16]) for n in range(2)],
    )
    batching = "[batching]\nmax_batch_size = 8"
    client.deploy(write_function(tmp_path_factory.mktemp("f"), "simple", SIMPLE, *numbers, batching))
    texts = [("INPUT0", "BYTES", [-1, -1])], [("OUTPUT0", "BYTES", [-1, -1])]
    client.deploy(write_function(tmp_path_factory.mktemp("f"), "simple_identity", ECHO, *texts))
    client.deploy(write_identity(tmp_path_factory.mktemp("f")))
    return mesh


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tritonclient_http_works_unchanged(served: Mesh, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, str(TRITON), served.http_address, kind],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "ok"


def test_what_is_served_is_what_the_document_says(served: Mesh, tmp_path: Path) -> None:
    """Schemathesis: no status, type of content or form of a body that the document does not name, and no hang."""
    checks = "status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
    command = [
        str(Path(sys.executable).with_name("st")), "run", f"http://{served.http_address}/openapi.json",
        "--checks", checks, "--max-examples", "8", "--phases", "examples,coverage,fuzzing",
        "--generation-deterministic", "--request-timeout", "20", "--no-color", "--suppress-health-check", "all",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
