"""tritonclient over gRPC, unchanged and in a process of its own, against a whole mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function
from rouse_testkit.outside import deploy_examples, run_client

CLIENTS = Path(__file__).with_name("clients")
SCENARIOS = [
    "unary", "stream", "decoupled", "sequence", "shared_memory", "shared_memory_errors", "errors",
    "statistics",
    "descriptions",
]  # fmt: skip
# As Triton's simple_sequence: adds the numbers of each sequence up.
TOTALS = """
    class Function:
        def load(self, context):
            self.totals = {}

        def predict(self, inputs, request):
            place = request.sequence
            if place.start:
                self.totals[place.id] = 0
            if place.id not in self.totals:
                raise ValueError(f"sequence {place.id} has not started")
            self.totals[place.id] += inputs["INPUT"]
            return {"OUTPUT": self.totals.pop(place.id) if place.end else self.totals[place.id].copy()}
"""


@pytest.fixture(scope="module")
def served(mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    client = mesh.client()
    deploy_examples(client)
    number = ("INT32", [1])
    totals = write_function(
        tmp_path_factory.mktemp("totals"), "totals", TOTALS, [("INPUT", *number)], [("OUTPUT", *number)]
    )
    client.deploy(totals)
    return mesh


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_tritonclient_grpc_works_unchanged(served: Mesh, scenario: str) -> None:
    assert run_client(CLIENTS / "triton_grpc.py", served.gateway_address, scenario).strip() == "ok"


def test_tritonclient_grpc_aio_works_unchanged(served: Mesh) -> None:
    assert run_client(CLIENTS / "triton_grpc_aio.py", served.gateway_address).strip() == "ok"
