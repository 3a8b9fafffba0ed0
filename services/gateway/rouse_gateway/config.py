"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rouse_common.config import ConfigError, ServiceConfig, option, parse_address
from rouse_common.tls import PublicTls, TlsFiles


@dataclass(frozen=True)
class GatewayConfig(ServiceConfig):
    """What the gateway can be told, beside what every service can."""

    http_listen: str = option(
        "127.0.0.1:8000", "address to serve HTTP on, host:port; port 0 takes a free one; empty: none"
    )
    max_http_buffer_mib: int = option(
        512, "bodies of HTTP requests that are at work at once, MiB together", low=1, high=1 << 20
    )
    cluster_manager: str = option("127.0.0.1:7001", "address of cluster-manager, host:port")
    model_repository: str = option("127.0.0.1:7002", "address of model-repository, host:port")
    scaler: str = option("127.0.0.1:7003", "address of scaler, host:port")
    nats: str = option("nats://127.0.0.1:4222", "NATS, which changes of the routing table come over, URL")
    redis: str = option("redis://127.0.0.1:6379/0", "Redis, which arrivals are counted in, URL")
    auth: bool = option(True, "whether callers need an API key; without, everybody is an administrator")
    log_dir: str = option("", "folder with the mesh's rouse.log, for reading logs; empty: none")
    default_timeout_s: float = option(60.0, "time for a request that sets no deadline, seconds", low=0.001, high=86_400)
    traces_per_s: float = option(
        10.0, "requests traced a second where the caller brings no trace of its own; 0: all", low=0, high=1_000_000
    )
    max_held: int = option(1000, "requests held while functions wake", low=1, high=100_000)
    public_tls_cert: str = option(
        "", "PEM file of the certificate that clients see, with public_tls_key; empty: tls_cert"
    )  # fmt: skip
    public_tls_key: str = option("", "PEM file of that certificate's private key")
    max_shared_memory_regions: int = option(
        256, "regions of system shared memory that clients may register; 0: none", low=0, high=100_000
    )
    service: tuple[str, ...] = option((), "service shown in the mesh's status, NAME=host:port; repeatable")

    def validate(self) -> None:
        """Raises ConfigError naming the setting that cannot be used."""
        for name in ("cluster_manager", "model_repository", "scaler"):
            parse_address(getattr(self, name), name)
        if self.http_listen:
            parse_address(self.http_listen, "http_listen")
        self.services()

    @property
    def public_tls(self) -> PublicTls | None:
        """What clients see; they are asked for no certificate. None: plain. Raises ConfigError."""
        cert, key = self.public_tls_cert, self.public_tls_key
        if bool(cert) != bool(key):
            raise ConfigError("public_tls_cert and public_tls_key: want both or none")
        if cert:
            return PublicTls(TlsFiles(Path(cert), Path(key), None, "public_tls"))
        return PublicTls(replace(self.tls.files, ca=None)) if self.tls is not None else None

    def check_tls(self) -> None:
        super().check_tls()
        if (tls := self.public_tls) is not None:
            tls.check()

    def services(self) -> dict[str, str]:
        """The services shown in the status, address by name. Raises ConfigError."""
        found: dict[str, str] = {}
        for text in self.service:
            name, separator, address = text.partition("=")
            if not name or not separator:
                raise ConfigError(f"service={text}: want NAME=host:port")
            if not address.startswith("unix:"):
                parse_address(address, f"service {name}")
            found[name] = address
        return found
