"""A hostile function in a whole mesh: the stores' passwords and the mesh's certificates are out of its reach."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from rouse_runtime.isolation import landlock
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_function, write_identity, write_linear

pytestmark = [
    pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock"),
    pytest.mark.timeout(300),
]
CODE = """
import os, pathlib, socket
import numpy as np

class Function:
    def predict(self, inputs):
        verdicts = []
        for word in inputs["paths"]:
            kind, _, rest = word.decode().partition(" ")
            try:
                if kind == "read":
                    pathlib.Path(rest).read_bytes()
                elif kind == "list":
                    os.listdir(rest)
                else:
                    socket.create_connection(("127.0.0.1", int(rest)), 5).close()
                verdicts.append("allowed")
            except OSError as error:
                verdicts.append(f"refused {error}")
        return {"verdicts": np.array(verdicts, dtype=object)}
"""


def test_the_state_of_the_mesh_and_its_ports_are_closed_to_functions(own_mesh: Mesh, tmp_path: Path) -> None:
    client = own_mesh.client()
    tensors = [("paths", "BYTES", [-1])], [("verdicts", "BYTES", [-1])]
    client.deploy(write_function(tmp_path / "spy", "spy", CODE, *tensors))
    client.deploy(write_identity(tmp_path / "same", "same"))
    client.deploy(write_linear(tmp_path / "lin", "lin", 256, 7))
    client.infer("lin", {"x": np.ones((1, 256), np.float32)})
    info = own_mesh.info
    files = [path for path in info.folders.data.rglob("*") if path.is_file()]
    secrets = [path for path in files if path.name in ("password", "nats.conf", "redis.conf", "mesh.json", "rouse.log")]
    assert len(secrets) >= 5
    weights = [path for path in info.folders.memory.rglob("*") if path.suffix in (".seg", ".img")]
    assert len(weights) >= 2
    folders = [info.folders.data, info.folders.runtime, Path.home()]
    ports = [address.rpartition(":")[2] for address in info.addresses.values()]
    ports += [str(store.port) for store in info.stores.all()]
    wishes = [
        *(f"read {path}" for path in [*secrets, *weights]),
        *(f"list {folder}" for folder in folders),
        *(f"connect {port}" for port in ports),
    ]
    answer = client.infer("spy", {"paths": wishes})
    verdicts = dict(zip(wishes, [verdict.decode() for verdict in answer["verdicts"]], strict=True))
    assert not {wish: verdict for wish, verdict in verdicts.items() if not verdict.startswith("refused")}
    np.testing.assert_array_equal(client.infer("same", {"x": np.arange(3, dtype=np.float32)})["y"], [0, 1, 2])
    instances = client.describe("spy").instances
    assert "landlock" in instances[0].isolation
    if os.geteuid() == 0:
        assert "root of its own" in instances[0].isolation
