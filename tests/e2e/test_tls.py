"""A whole mesh with certificates: it serves, its command line finds the authority, strangers get nowhere."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

import rouse
from rouse_contracts import cluster
from rouse_embedded.authority import Authority
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_identity, write_linear

pytestmark = pytest.mark.timeout(300)
X = {"x": np.arange(4, dtype=np.float32)}
REFUSED_S = 2.0
TRITON = """
import sys
import numpy as np
import tritonclient.grpc as grpc

client = grpc.InferenceServerClient(sys.argv[1], ssl=True, root_certificates=sys.argv[2])
assert client.is_server_ready()
given = grpc.InferInput("x", [4], "FP32")
given.set_data_from_numpy(np.arange(4, dtype=np.float32))
assert client.infer("same", [given]).as_numpy("y").tolist() == [0, 1, 2, 3]
"""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path_factory.mktemp("mesh"), tls=True)
    mesh.start()
    yield mesh
    mesh.stop()


def test_it_serves_and_wakes_after_a_service_was_killed(secure: Mesh, tmp_path: Path) -> None:
    client = secure.client()
    client.deploy(write_identity(tmp_path / "same", "same"))
    client.deploy(write_linear(tmp_path / "lin", "lin", 256, 7))
    np.testing.assert_array_equal(client.infer("same", X, timeout=60)["y"], X["x"])
    assert client.infer("lin", {"x": np.ones((1, 256), np.float32)}, timeout=60)["y"].shape == (1, 256)
    assert {service.state for service in client.status().services} == {"SERVING"}
    secure.kill("node-router")
    secure.wait_ready()
    np.testing.assert_array_equal(client.infer("same", X, timeout=60)["y"], X["x"])


def test_tritonclient_with_ssl(secure: Mesh, tmp_path: Path) -> None:
    secure.client().deploy(write_identity(tmp_path / "same", "same"))
    arguments = [sys.executable, "-c", TRITON, secure.gateway_address, str(secure.data_dir / "tls" / "ca.crt")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_rest_is_https(secure: Mesh) -> None:
    context = ssl.create_default_context(cafile=secure.data_dir / "tls" / "ca.crt")
    with urllib.request.urlopen(f"https://{secure.info.http_address}/v2", context=context, timeout=20) as answer:
        assert json.loads(answer.read())["name"] == "rouse"
    with pytest.raises(OSError, match=r"."):
        urllib.request.urlopen(f"http://{secure.info.http_address}/v2", timeout=REFUSED_S)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://{secure.info.http_address}/v2", timeout=20)


def test_the_command_line_finds_the_authority(secure: Mesh) -> None:
    command = [sys.executable, "-m", "rouse.cli.main", "status", "--json"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROUSE_")}
    for extra in (
        {"ROUSE_DATA_DIR": str(secure.data_dir)},
        {"ROUSE_DATA_DIR": "/nowhere", "ROUSE_ADDRESS": secure.gateway_address,
         "ROUSE_CA": str(secure.data_dir / "tls" / "ca.crt")},
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env={**clean, **extra})
        assert done.returncode == 0, done.stderr


def test_strangers_are_refused(secure: Mesh, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "tls", "127.0.0.1:1")
    stranger.prepare([])
    for gateway in (
        rouse.Client(f"grpc://{secure.gateway_address}", timeout=REFUSED_S),
        rouse.Client(secure.gateway_address, ca=stranger.ca, timeout=REFUSED_S),
        rouse.Client(f"grpcs://{secure.gateway_address}", timeout=REFUSED_S),
    ):
        with gateway, pytest.raises((rouse.Unavailable, rouse.DeadlineExceeded)):
            gateway.status()
    ca = (secure.data_dir / "tls" / "ca.crt").read_bytes()
    inside = secure.info.addresses["cluster-manager"]
    for channel in (
        grpc.insecure_channel(inside),
        grpc.secure_channel(inside, grpc.ssl_channel_credentials(ca)),
        grpc.secure_channel(inside, stranger.tls().channel_credentials()),
    ):
        with channel, pytest.raises(grpc.RpcError):
            cluster.ClusterServiceStub(channel).ListNodes(cluster.ListNodesRequest(), timeout=REFUSED_S)
