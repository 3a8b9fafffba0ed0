"""How each peer is started: on the loopback, one process for the model, with its own way of batching or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rouse_loadtest.processes import free_port, serving
from rouse_loadtest.targets import Target, infer_request, over_grpc, over_http
from rouse_testkit.environments import python_of

HERE = Path(__file__).parent
PROTO = HERE.parents[2] / "proto"
START_S = 240.0


@dataclass(frozen=True)
class Job:
    """What a peer is to serve.

    Args:
        model: "identity", or "mlp": three layers, batchable.
        max_batch_size, max_batch_delay_s: its batching; 0: none.
        tensors: what a request holds.
    """

    model: str
    tensors: Mapping[str, np.ndarray]
    max_batch_size: int = 0
    max_batch_delay_s: float = 0.0


@contextmanager
def mlserver(job: Job, folder: Path) -> Iterator[Target]:
    """MLServer, gRPC, the model in the server's own process."""
    python = python_of("mlserver", MLSERVER + (TORCH if job.model == "mlp" else []))
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "host": "127.0.0.1", "http_port": free_port(), "grpc_port": port, "metrics_port": free_port(),
        "parallel_workers": 0, "debug": False,
    }  # fmt: skip
    model = {
        "name": job.model,
        "implementation": f"mlserver_models.{job.model.capitalize()}",
        "max_batch_size": job.max_batch_size,
        "max_batch_time": job.max_batch_delay_s,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    command = [str(python.parent / "mlserver"), "start", str(folder)]
    with serving(command, port, folder / "log", {"PYTHONPATH": str(HERE)}, START_S):
        yield over_grpc("mlserver", f"127.0.0.1:{port}", infer_request(job.model, job.tensors))


@contextmanager
def kserve(job: Job, folder: Path) -> Iterator[Target]:
    """KServe's model server, gRPC, the model in the server's own event loop."""
    python = python_of("kserve", KSERVE)
    port = free_port()
    command = [
        str(python), str(HERE / "kserve_server.py"),
        "--http_port", str(free_port()), "--grpc_port", str(port), "--workers", "1",
    ]  # fmt: skip
    with serving(command, port, folder / "log", start_s=START_S):
        yield over_grpc("kserve", f"127.0.0.1:{port}", infer_request(job.model, job.tensors))


@contextmanager
def ray(job: Job, folder: Path) -> Iterator[Target]:
    """Ray Serve, gRPC: a proxy process before a replica, with the defaults."""
    python = python_of("ray", RAY)
    port = free_port()
    command = [str(python), str(HERE / "ray_server.py"), str(port), str(free_port()), str(PROTO)]
    with serving(command, port, folder / "log", {"PYTHONPATH": str(folder)}, START_S):
        request = infer_request(job.model, job.tensors)
        yield over_grpc("ray", f"127.0.0.1:{port}", request, [("application", "default")])


@contextmanager
def litserve(job: Job, folder: Path) -> Iterator[Target]:
    """LitServe, which speaks HTTP and JSON only."""
    python = python_of("litserve", LITSERVE + TORCH)
    port = free_port()
    command = [
        str(python), str(HERE / "litserve_server.py"),
        str(port), str(job.max_batch_size), str(job.max_batch_delay_s),
    ]  # fmt: skip
    body = json.dumps({name: array.tolist() for name, array in job.tensors.items()}).encode()
    with serving(command, port, folder / "log", {"PYTHONPATH": str(HERE)}, START_S):
        yield over_http("litserve", f"http://127.0.0.1:{port}/predict", body)


MLSERVER = ["mlserver==1.7.1"]
KSERVE = ["kserve==0.21.0"]
RAY = ["ray[serve]==2.60.0", "grpcio", "grpcio-tools"]
LITSERVE = ["litserve==0.2.19"]
TORCH = ["torch==2.13.0"]

Peer = Callable[[Job, Path], AbstractContextManager[Target]]
PEERS: Mapping[str, Peer] = {"mlserver": mlserver, "kserve": kserve, "ray": ray, "litserve": litserve}
