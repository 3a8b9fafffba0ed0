"""Settings of cluster-manager."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rouse_common.config import ConfigError, ServiceConfig, option, parse_address
from rouse_store.url import normalised

# As long and as plain as a bearer token may be (RFC 6750, section 2.1).
BOOTSTRAP_KEY = re.compile(r"[A-Za-z0-9._~+/=-]{32,256}")


@dataclass(frozen=True)
class ClusterManagerConfig(ServiceConfig):
    database: str = option("", "SQLAlchemy URL of the PostgreSQL database; give it by environment")
    nats: str = option("", "NATS URL, with user and password; give it by environment")
    model_repository: str = option("127.0.0.1:7002", "address of model-repository, host:port")
    heartbeat_ms: int = option(1000, "how often nodes send heartbeats, milliseconds", low=50, high=60_000)
    node_lost_ms: int = option(5000, "a node silent for so long is LOST, milliseconds", low=100, high=3_600_000)
    pending_limit_s: float = option(30.0, "an instance PENDING for longer is FAILED, seconds", low=0.1, high=86_400)
    start_limit_s: float = option(180.0, "an instance STARTING for longer is FAILED, seconds", low=0.1, high=86_400)
    stop_limit_s: float = option(60.0, "an instance STOPPING for longer is told again, seconds", low=0.1, high=86_400)
    stop_grace_ms: int = option(2000, "time for what executes at a deletion, milliseconds", low=0, high=60_000)
    forget_node_s: float = option(86_400.0, "a node LOST for longer is forgotten, seconds", low=1)
    keep_events: int = option(10_000, "events that are kept", low=100, high=10_000_000)
    keep_usage: int = option(200_000, "usage records that are kept; totals always are", low=1000, high=100_000_000)
    secrets_key_file: str = option(
        "", "file with the key that secrets are encrypted with, 64 hex digits, mode 0600; empty: no secrets are kept"
    )
    bootstrap_key: str = option(
        "", "text of the first administrator's API key, 32 characters or more; give it by environment"
    )
    executors: bool = option(
        False, "take functions with execution = 'rouse': every node's gpu-server was started with --executors"
    )
    keep_ended: int = option(20, "ended instances that are kept for each version", low=1, high=10_000)

    def validate(self) -> None:
        """Raises ConfigError where settings contradict each other or are missing."""
        if not self.database:
            raise ConfigError("database is not set; set ROUSE_CLUSTER_MANAGER_DATABASE to its URL")
        if not self.nats:
            raise ConfigError("nats is not set; set ROUSE_CLUSTER_MANAGER_NATS to its URL")
        if self.bootstrap_key and not BOOTSTRAP_KEY.fullmatch(self.bootstrap_key):
            # Without the value: it may be a key that is in use.
            raise ConfigError(
                "bootstrap_key is no key: want 32 to 256 letters, digits, '.', '_', '~', '+', '/', '=' or '-'"
            )
        try:
            normalised(self.database)
        except ValueError as error:
            raise ConfigError(f"database: {error}") from None
        parse_address(self.model_repository, "model_repository")
        if self.node_lost_ms < 2 * self.heartbeat_ms:
            raise ConfigError(
                f"node_lost_ms={self.node_lost_ms}: want at least twice heartbeat_ms, which is {self.heartbeat_ms}"
            )
