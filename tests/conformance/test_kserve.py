"""KServe's clients, unchanged, in an environment and a process of their own, against a whole mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from rouse_testkit.environments import NotInstalled, python_of
from rouse_testkit.mesh import Mesh
from rouse_testkit.outside import deploy_examples, run_client

# Making the environment takes minutes, once a machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CLIENTS = Path(__file__).with_name("clients") / "kserve_clients.py"


@pytest.fixture(scope="module")
def kserve() -> str:
    """The interpreter of the environment."""
    try:
        return str(python_of("kserve", ["kserve==0.21.0"]))
    except NotInstalled as error:
        pytest.skip(f"KServe cannot be had here: {error}")


@pytest.fixture(scope="module")
def served(mesh: Mesh) -> Mesh:
    deploy_examples(mesh.client(), "simple", "simple_identity")
    return mesh


def test_kserve_s_grpc_client_works_unchanged(served: Mesh, kserve: str) -> None:
    assert run_client(CLIENTS, "grpc", served.gateway_address, python=kserve).strip() == "ok"


def test_kserve_s_rest_client_works_unchanged(served: Mesh, kserve: str) -> None:
    assert run_client(CLIENTS, "rest", served.http_address, python=kserve).strip() == "ok"
