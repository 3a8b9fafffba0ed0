"""Clients of REST v2, unchanged and each in a process of its own, against a whole mesh; and what the OpenAPI
document says, held against what is served."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rouse_testkit.http import HttpAnswer, ask
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_identity
from rouse_testkit.outside import deploy_examples, run_client

CLIENT = Path(__file__).with_name("clients") / "triton_http.py"


@pytest.fixture(scope="module")
def served(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    client = mesh.client()
    deploy_examples(client, "simple", "simple_identity", "repeat_int32")
    client.deploy(write_identity(tmp_path_factory.mktemp("f")))
    return mesh


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tritonclient_http_works_unchanged(served: Mesh, kind: str) -> None:
    assert run_client(CLIENT, served.http_address, kind).strip() == "ok"


def post(mesh: Mesh, path: str, body: Any) -> HttpAnswer:
    return asyncio.run(ask(mesh.http_address, "POST", f"/v2/models/repeat_int32/{path}", body))


def test_a_decoupled_function_streams_what_it_yields(served: Mesh) -> None:
    asked = {"IN": [4, 2, 0], "DELAY": [0, 0, 0], "WAIT": 0}
    answer = post(served, "generate_stream", asked)
    events = [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().split("\n\n") if line]
    assert [(event["OUT"], event["IDX"]) for event in events] == [(4, 0), (2, 1), (0, 2)]
    refused = post(served, "generate", asked)
    assert (refused.status, refused.json["reason"]) == (501, "NOT_ONE_RESPONSE")
    assert post(served, "generate", {"IN": [7], "DELAY": [0], "WAIT": 0}).json["OUT"] == 7


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
