"""Which processes a mesh is made of, and the environment that configures each."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from rouse_common.lifecycle import PARENT_ENV
from rouse_embedded.authority import Authority, settings
from rouse_embedded.folders import TAG, Folders
from rouse_embedded.keys import Keys
from rouse_embedded.options import NO_HTTP, MeshOptions
from rouse_embedded.processes import ProcessSpec
from rouse_embedded.stores import Nats, Postgres, Redis, Store
from rouse_embedded.stores.base import HOST, free_port

CLUSTER_SERVICES = ("cluster-manager", "model-repository", "comm-broker", "scaler", "gateway")
NODE_SERVICES = ("gpu-server", "node-router", "coordinator")
# The front door closes first; what others need to finish their work stays longest.
STOP_RANKS = {
    "gateway": 0,
    "scaler": 1,
    "comm-broker": 1,
    "node-router": 2,
    "coordinator": 3,
    "gpu-server": 4,
    "model-repository": 5,
    "cluster-manager": 5,
}
STORE_STOP_RANK = 6
DRAIN_S = 3.0
# As many as a coordinator may have instances, so that those of two nodes are never the same user; and a range for
# each mesh, since the kernel counts a user's processes over the whole machine.
FIRST_USER, USERS_PER_NODE = 200_000, 4096
NODES_PER_MESH, MESHES = 64, 4096
STOP_TIMEOUT_S = 8.0


@dataclass(frozen=True)
class Stores:
    postgres: Postgres
    nats: Nats
    redis: Redis

    @classmethod
    def below(cls, folders: Folders) -> Stores:
        return cls(Postgres(folders.data / "postgres"), Nats(folders.data / "nats"), Redis(folders.data / "redis"))

    def all(self) -> tuple[Store, ...]:
        return self.postgres, self.nats, self.redis


def node_ids(options: MeshOptions) -> list[str]:
    return [f"node{number}" for number in range(options.nodes)]


def process_names(options: MeshOptions) -> list[str]:
    """Names of the service processes; those of a node end with @ and the node."""
    return [*CLUSTER_SERVICES, *(f"{service}@{node}" for node in node_ids(options) for service in NODE_SERVICES)]


def link_addresses(options: MeshOptions, folders: Folders) -> dict[str, str]:
    """Where links listen, by process: gateways reach a node over TCP, its services each other by Unix sockets."""
    routers = {f"node-router@{node}": f"{HOST}:{free_port()}" for node in node_ids(options)}
    devices = {f"gpu-server@{node}": f"unix:{folders.runtime}/{node}-gpu.link" for node in node_ids(options)}
    return routers | devices


def store_spec(
    store: Store, folders: Folders, environ: Mapping[str, str], answers: Callable[[int], Awaitable[bool]]
) -> ProcessSpec:
    """One store as a process."""
    return ProcessSpec(
        name=store.name, command=store.command(), environment={**environ, TAG: folders.key}, folder=folders.data,
        address=f"127.0.0.1:{store.port}", probe=answers, prepare=store.prepare, stop_rank=STORE_STOP_RANK,
        stop_signal=store.stop_signal, stop_timeout_s=STOP_TIMEOUT_S,
    )  # fmt: skip


def service_specs(
    options: MeshOptions,
    folders: Folders,
    stores: Stores,
    addresses: Mapping[str, str],
    links: Mapping[str, str],
    metrics_addresses: Mapping[str, str],
    environ: Mapping[str, str],
    probe: Callable[[str], Callable[[int], Awaitable[bool]]],
    keys: Keys,
    authority: Authority | None = None,
) -> list[ProcessSpec]:
    """Every service as a process.

    Args:
        addresses, metrics_addresses: where each of `process_names` listens; without metrics the latter is empty.
        links: where links listen, as `link_addresses` says.
        environ: what every process inherits; settings of ours take precedence.
        probe: makes the readiness check of an address.
        keys: the mesh's own.
        authority: has certificates for all of them; None: plain connections.
    """
    specs = []
    for name in process_names(options):
        service, _, node = name.partition("@")
        given = _settings(options, folders, stores, addresses, links, service, node)
        given |= keys.settings(service)
        given |= settings(authority.files(service)) if authority is not None else {}
        given |= {"metrics_listen": metrics_addresses[name]} if name in metrics_addresses else {}
        given |= options.settings.get(service, {})
        prefix = f"ROUSE_{service.upper().replace('-', '_')}_"
        environment = {**environ, PARENT_ENV: str(os.getpid()), TAG: folders.key}
        environment |= {prefix + key.upper(): value for key, value in given.items()}
        module = f"rouse_{service.replace('-', '_')}"
        spec = ProcessSpec(
            name=name, command=[sys.executable, "-P", "-m", module], environment=environment, folder=folders.data,
            address=addresses[name], probe=probe(addresses[name]), stop_rank=STOP_RANKS[service],
            stop_timeout_s=STOP_TIMEOUT_S, metrics_address=metrics_addresses.get(name, ""),
        )  # fmt: skip
        specs.append(spec)
    return specs


def _settings(
    options: MeshOptions,
    folders: Folders,
    stores: Stores,
    addresses: Mapping[str, str],
    links: Mapping[str, str],
    service: str,
    node: str,
) -> dict[str, str]:
    """The settings of one service, by field of its configuration."""
    name = f"{service}@{node}" if node else service
    common = {
        "listen": addresses[name],
        "log_level": options.log_level,
        "trace_dir": str(folders.traces),
        "otlp_endpoint": options.otlp_endpoint,
        "drain_s": str(DRAIN_S),
    }
    if node:
        return common | _node_settings(options, folders, stores, addresses, links, service, node)
    own: dict[str, dict[str, str]] = {
        "cluster-manager": {
            "database": stores.postgres.url,
            "nats": stores.nats.url,
            "model_repository": addresses["model-repository"],
            "executors": str(options.executors).lower(),
        },
        "model-repository": {"nats": stores.nats.url, "spool_dir": str(folders.data / "spool")},
        "comm-broker": {"nats": stores.nats.url},
        "scaler": {"cluster_manager": addresses["cluster-manager"], "redis": stores.redis.url},
        "gateway": {
            "cluster_manager": addresses["cluster-manager"],
            "model_repository": addresses["model-repository"],
            "scaler": addresses["scaler"],
            "nats": stores.nats.url,
            "redis": stores.redis.url,
            "log_dir": str(folders.logs),
            "http_listen": "" if options.http_listen == NO_HTTP else options.http_listen,
            "service": ",".join(f"{other}={address}" for other, address in addresses.items()),
        },
    }
    return common | own[service]


def _node_settings(
    options: MeshOptions,
    folders: Folders,
    stores: Stores,
    addresses: Mapping[str, str],
    links: Mapping[str, str],
    service: str,
    node: str,
) -> dict[str, str]:
    router, device = addresses[f"node-router@{node}"], addresses[f"gpu-server@{node}"]
    own: dict[str, dict[str, str]] = {
        "node-router": {
            "link_listen": links[f"node-router@{node}"],
            "gpu_server": device,
            "gpu_server_link": links[f"gpu-server@{node}"],
            "cluster_manager": addresses["cluster-manager"],
            "redis": stores.redis.url,
        },
        "gpu-server": {
            "link_listen": links[f"gpu-server@{node}"],
            "model_repository": addresses["model-repository"],
            "coordinator": addresses[f"coordinator@{node}"],
            "device": ",".join(options.devices),
            "memory_dir": str(folders.memory / node),
            "cache_dir": str(folders.data / "nodes" / node / "cache"),
            "host_memory": options.host_memory,
            "executors": str(options.executors).lower(),
        },
        "coordinator": {
            "cluster_manager": addresses["cluster-manager"],
            "gpu_server": device,
            "node_router": router,
            "node_router_link": links[f"node-router@{node}"],
            "runtime_dir": str(folders.runtime / node),
            "first_user": str(_first_user(folders.key, node_ids(options).index(node))),
        },
    }
    return {"node_id": node} | own[service]


def _first_user(mesh_key: str, node: int) -> int:
    mesh = zlib.crc32(mesh_key.encode()) % MESHES
    return FIRST_USER + (mesh * NODES_PER_MESH + node % NODES_PER_MESH) * USERS_PER_NODE
