"""Settings of node-router."""

from __future__ import annotations

from dataclasses import dataclass

from rouse_common.config import ConfigError, ServiceConfig, option, parse_address
from rouse_policy import queueing, rrc


@dataclass(frozen=True)
class NodeRouterConfig(ServiceConfig):
    """What node-router can be told, beside what every service can."""

    node_id: str = option("node0", "name of the node that it serves")
    link_listen: str = option("127.0.0.1:0", "address of the link that requests come by, host:port or unix:PATH")
    gpu_server: str = option("127.0.0.1:7101", "address of the node's gpu-server, host:port or unix:PATH")
    gpu_server_link: str = option("127.0.0.1:7111", "address of gpu-server's link, host:port or unix:PATH")
    cluster_manager: str = option("127.0.0.1:7001", "address of cluster-manager, host:port")
    redis: str = option("redis://127.0.0.1:6379/0", "Redis, which completions are counted in, URL")
    max_acquires: int = option(64, "requests of all functions that wait for a device at once", low=1, high=4096)
    max_acquires_per_version: int = option(
        2, "requests of one version that wait for a device at once; the others stay in its queue", low=1, high=64
    )
    queue_order: str = option(
        "deadline", "order of one tenant's functions: deadline, fifo, or rrc (who misses its objective by little "
        "first); with rrc set max_acquires to little more than there are devices, as gpu-server keeps the order given",
    )  # fmt: skip
    percentile: float = option(0.98, "part of a function's requests that its objective holds for", low=0.5, high=0.9999)
    decision_log: str = option("", "file that decisions are added to as JSON, up to 64 MiB, for replaying; empty: none")
    lease_reuse_ms: float = option(
        100.0, "how long after it was granted a lease serves further requests of its version, while nobody else waits "
        "for a device, ms; 0: each request takes its own", low=0, high=1000,
    )  # fmt: skip
    idle_state_s: float = option(300.0, "how long counts of a version without requests are kept, seconds", low=1)
    sequence_idle_s: float = option(60.0, "a sequence without a request for so long is over, seconds", low=0.1)
    usage_buffer: int = option(10_000, "usage records kept while cluster-manager is away", low=1000, high=1_000_000)

    def validate(self) -> None:
        """Raises ConfigError naming the setting that cannot be used."""
        if not self.node_id:
            raise ConfigError("node_id: want a name")
        for name in ("link_listen", "gpu_server", "gpu_server_link"):
            if not getattr(self, name).startswith("unix:"):
                parse_address(getattr(self, name), name)
        parse_address(self.cluster_manager, "cluster_manager")
        if self.queue_order.upper() not in queueing.Order.__members__:
            raise ConfigError(f"queue_order={self.queue_order}: want deadline, fifo or rrc")

    @property
    def queueing(self) -> queueing.Settings:
        return queueing.Settings(
            max_acquiring=self.max_acquires,
            max_acquiring_per_version=self.max_acquires_per_version,
            order=queueing.Order[self.queue_order.upper()],
            objective=rrc.Settings(percentile=self.percentile),
        )
