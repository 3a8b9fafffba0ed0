"""The outside clients, unchanged, against a mesh that asks for keys: each shows one by what it has for that, and is
refused in its own terms without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rouse_testkit.environments import NotInstalled, python_of
from rouse_testkit.fetching import Unobtainable
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_identity
from rouse_testkit.outside import deploy_examples, run_client
from rouse_testkit.perf_analyzer import PerfAnalyzer, obtain

CLIENTS = Path(__file__).with_name("clients")
TENANT = "outside"
# KServe's REST client says of a model only that it is not ready.
REFUSED = r"(?i)unauthenticated|401|needs an API key|client.is_model_ready"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh that asks for keys, with the examples as functions of one tenant."""
    mesh = Mesh(tmp_path_factory.mktemp("mesh"), auth=True)
    mesh.start()
    mesh.client().access.set_tenant(TENANT)
    deployer = mesh.client(key_of(mesh, "deploy"))
    deploy_examples(deployer)
    deployer.deploy(write_identity(tmp_path_factory.mktemp("f")))
    yield mesh
    mesh.stop()


def key_of(mesh: Mesh, role: str) -> str:
    return mesh.client().access.create_key(TENANT, role).text


def run(mesh: Mesh, program: str, *arguments: str, role: str = "invoke", **options: str) -> str:
    environment = {"OUTSIDE_API_KEY": key_of(mesh, role)} if role else {}
    return run_client(CLIENTS / program, *arguments, environment=environment, **options).strip()


@pytest.mark.parametrize("scenario", ["unary", "stream", "decoupled", "shared_memory", "statistics"])
def test_tritonclient_grpc_shows_its_key(guarded: Mesh, scenario: str) -> None:
    assert run(guarded, "triton_grpc.py", guarded.gateway_address, scenario) == "ok"


def test_tritonclient_grpc_aio_shows_its_key(guarded: Mesh) -> None:
    assert run(guarded, "triton_grpc_aio.py", guarded.gateway_address) == "ok"


@pytest.mark.parametrize(("kind", "role"), [("sync", "admin"), ("async", "invoke")])
def test_tritonclient_http_shows_its_key(guarded: Mesh, kind: str, role: str) -> None:
    assert run(guarded, "triton_http.py", guarded.http_address, kind, role=role) == "ok"


def test_errors_are_those_of_a_mesh_without_keys(guarded: Mesh) -> None:
    assert run(guarded, "triton_grpc.py", guarded.gateway_address, "errors", role="deploy") == "ok"


@pytest.mark.parametrize(
    ("program", "arguments"),
    [("triton_grpc.py", ["unary"]), ("triton_grpc_aio.py", []), ("triton_http.py", ["async"])],
    ids=["grpc", "grpc.aio", "http"],
)
def test_without_a_key_a_client_hears_why(guarded: Mesh, program: str, arguments: list[str]) -> None:
    address = guarded.http_address if "http" in program else guarded.gateway_address
    with pytest.raises(AssertionError, match=REFUSED):
        run(guarded, program, address, *arguments, role="")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_kserve_s_clients_show_their_key(guarded: Mesh, protocol: str) -> None:
    try:
        kserve = str(python_of("kserve", ["kserve==0.21.0"]))
    except NotInstalled as error:
        pytest.skip(f"KServe cannot be had here: {error}")
    address = guarded.gateway_address if protocol == "grpc" else guarded.http_address
    assert run(guarded, "kserve_clients.py", protocol, address, python=kserve) == "ok"
    with pytest.raises(AssertionError, match=REFUSED):
        run(guarded, "kserve_clients.py", protocol, address, python=kserve, role="")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_perf_analyzer_shows_its_key(guarded: Mesh, protocol: str) -> None:
    try:
        analyzer: PerfAnalyzer = obtain()
    except Unobtainable as error:
        pytest.skip(f"perf_analyzer cannot be had here: {error}")
    address = guarded.gateway_address if protocol == "grpc" else guarded.http_address
    arguments = ("--measurement-mode", "count_windows", "--measurement-request-count", "50", "-s", "1000", "-r", "3")
    header = ("-H", f"authorization: Bearer {key_of(guarded, 'invoke')}")
    assert analyzer.measure("simple", address, protocol, *arguments, *header).requests >= 50
    with pytest.raises(AssertionError, match=REFUSED):
        analyzer.measure("simple", address, protocol, *arguments)
