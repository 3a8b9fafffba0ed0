"""A mesh under load, in processes of its own, as `rouse up` runs it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import rouse
from rouse_loadtest.processes import NotStarted, free_port, serving

DEPLOY_S = 120.0
READY_S = 90.0
POLL_S = 0.1


@dataclass(frozen=True)
class Mesh:
    """A running mesh.

    Args:
        address: of the gateway's gRPC server.
        folder: its data folder.
        client: connected to it.
        process: of `rouse up`, whose children the services are.
    """

    address: str
    folder: Path
    client: rouse.Client
    process: subprocess.Popen[bytes]


@contextmanager
def running(folder: Path, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[Mesh]:
    """A mesh on loopback until the block ends; what was deployed in the same folder before is there again.

    Args:
        env: settings of services, as {"ROUSE_NODE_ROUTER_QUEUE_ORDER": "fifo"}.
    """
    port = free_port()
    data = folder / "mesh"
    command = [
        sys.executable, "-m", "rouse_embedded", "up",
        "--data-dir", str(data), "--listen", f"127.0.0.1:{port}", *flags,
    ]  # fmt: skip
    with (
        serving(command, port, folder / "mesh.log", env) as process,
        rouse.Client(f"127.0.0.1:{port}") as client,
    ):
        _wait_ready(client)
        yield Mesh(f"127.0.0.1:{port}", data, client, process)


def _wait_ready(client: rouse.Client) -> None:
    """Raises NotStarted."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            status = client.status()
        except rouse.RouseError:
            status = None
        if status and status.nodes and all(service.state == "SERVING" for service in status.services):
            return
        time.sleep(POLL_S)
    raise NotStarted(f"the mesh was not ready after {READY_S:.0f} s")


def write_function(
    folder: Path, name: str, code: str, inputs: Sequence[str], outputs: Sequence[str], settings: str = ""
) -> Path:
    """A function's folder. Tensors are written as 'x FP32 [1, 16]'."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "function.py").write_text(code)
    lines = [f'name = "{name}"', 'handler = "function:Function"']
    for kind, tensors in (("inputs", inputs), ("outputs", outputs)):
        for tensor in tensors:
            title, datatype, shape = tensor.split(" ", 2)
            lines += [f"[[{kind}]]", f'name = "{title}"', f'datatype = "{datatype}"', f"shape = {shape}"]
    (folder / "rouse.toml").write_text("\n".join([*lines, settings]) + "\n")
    return folder
