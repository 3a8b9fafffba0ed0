"""Settings of the coordinator."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rouse_common.config import ConfigError, ServiceConfig, option, parse_address, parse_ports
from rouse_contracts.links import LINK_SUFFIX

# A Unix socket's path has 107 characters at most; those of an instance are runtime_dir/<36>.sock and, for its link,
# the same with .link.
MAX_SOCKET_PATH = 107
MAX_INSTANCE_ID = 36
MAX_RUNTIME_DIR = MAX_SOCKET_PATH - len("/.sock" + LINK_SUFFIX) - MAX_INSTANCE_ID
NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class CoordinatorConfig(ServiceConfig):
    """Environment ROUSE_COORDINATOR_<NAME>."""

    node_id: str = option("", "identifier of this node, unique in the mesh")
    cluster_manager: str = option("", "address of cluster-manager, host:port")
    gpu_server: str = option("", "address of this node's gpu-server, host:port")
    node_router: str = option("", "address of this node's node-router, host:port, as gateways reach it")
    node_router_link: str = option("", "address of its link, host:port, as gateways reach it")
    advertise: str = option("", "address of this coordinator as others reach it, host:port; empty: where it listens")
    advertise_gpu_server: str = option(
        "", "address of gpu-server as others reach it, host:port; empty: gpu_server"
    )  # fmt: skip
    runtime_dir: str = option(
        "", f"folder of the instances' Unix sockets, made if absent; at most {MAX_RUNTIME_DIR} characters"
    )  # fmt: skip
    max_instances: int = option(64, "instances that run at once on this node", low=1, high=4096)
    templates: bool = option(
        True, "fork instances off a process that has imported PyTorch already, instead of starting each from scratch"
    )  # fmt: skip
    load_timeout_s: float = option(120.0, "how long an instance may take to load, seconds", low=1, high=3600)
    stage_timeout_s: float = option(
        600.0, "how long gpu-server may take to bring a version to the node, seconds", low=1, high=86_400
    )  # fmt: skip
    stop_grace_s: float = option(
        5.0, "how long a stop that names no grace waits for the request that runs, seconds", low=0, high=3600
    )  # fmt: skip
    hang_grace_s: float = option(
        30.0, "how long a request may run past its deadline before its process is ended, seconds", low=0.1, high=3600
    )  # fmt: skip
    isolation: str = option(
        "auto", "what keeps instances apart: auto, as much as the machine gives; strict, all of it or no instance; off",
        choices=("auto", "strict", "off"),
    )  # fmt: skip
    first_user: int = option(
        200_000, "instances become users from here on, one each, where the coordinator is root; 0: none of their own",
        low=0, high=2_000_000_000,
    )  # fmt: skip
    instance_ports: str = option("53,80,443", "TCP ports that functions may connect to; any; none: no network at all")
    instance_tmp_mib: int = option(
        256, "room for an instance's temporary files, and largest file that it writes, MiB", low=1, high=1 << 20
    )
    instance_processes: int = option(512, "processes and threads of an instance", low=32, high=100_000)
    instance_files: int = option(1024, "files and sockets that an instance has open at once", low=64, high=1 << 20)
    instance_memory_mib: int = option(
        0, "memory of an instance whose function sets no limit, MiB; 0: half of the machine's", low=0, high=1 << 24
    )
    sync_s: float = option(2.0, "time between full reports of executors to gpu-server, seconds", low=0.1, high=60)

    def validate(self) -> None:
        if not NODE_ID.fullmatch(self.node_id):
            raise ConfigError(f"node_id={self.node_id}: want letters, digits, '.', '_' and '-', 128 at most")
        for name in ("cluster_manager", "gpu_server", "node_router", "node_router_link"):
            parse_address(getattr(self, name), name)
        try:
            parse_ports(self.instance_ports)
        except ValueError as error:
            raise ConfigError(f"instance_ports={self.instance_ports}: {error}") from None
        if not self.runtime_dir.startswith("/") or len(self.runtime_dir) > MAX_RUNTIME_DIR:
            raise ConfigError(
                f"runtime_dir={self.runtime_dir}: want an absolute path of at most {MAX_RUNTIME_DIR} characters, "
                "since a Unix socket's path has little room"
            )
