"""What an instance is told when it is started: by environment only, since it holds a token."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from rouse_common.config import ConfigError, load, option, parse_ports

COORDINATOR_ENV = "ROUSE_COORDINATOR"
# Of an instance's folder; short, since the path of a Unix socket is.
SOCKET = "s"
TOKEN_ENV = "ROUSE_INSTANCE_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True)
class InstanceConfig:
    """Settings of one function instance, environment ROUSE_INSTANCE_<NAME>."""

    id: str = option("", "identifier of the instance")
    token: str = option("", "what proves to the coordinator that this process is the instance")
    coordinator: str = option("", "the coordinator's socket, unix:PATH; environment ROUSE_COORDINATOR")
    function: str = option("", "name of the function, for log lines")
    format: str = option(
        "", "format of the artefact, so that libraries are imported while it is being staged",
        choices=("", "HUGGING_FACE", "PYTHON", "TORCH_EXPORT"),
    )  # fmt: skip
    log_level: str = option("INFO", "lowest level that is logged", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    otlp_endpoint: str = option("", "OTLP/gRPC endpoint that spans are exported to; empty: none")
    trace_dir: str = option("", "folder that spans are kept in as JSON lines; empty: none")
    max_message_mib: int = option(64, "largest gRPC message, MiB", low=1, high=1024)
    hang_grace_s: float = option(
        30.0, "how long a request may run past its deadline before the process is ended, seconds", low=0.1, high=3600
    )
    isolation: str = option(
        "off", "what keeps it apart, see rouse_runtime.isolation", choices=("off", "auto", "strict")
    )
    folder: str = option("", "its own folder, which holds its sockets and, where it is isolated, `tmp` and `root`")
    user: int = option(0, "user that it becomes where it starts as root; 0: none", low=0, high=2**31 - 1)
    ports: str = option("any", "TCP ports that it may connect to, as 53,443; any; none: no network at all")
    tmp_mib: int = option(256, "room in its folder for temporary files, and largest file it writes, MiB", low=1)
    processes: int = option(512, "processes and threads", low=32)
    files: int = option(1024, "files open at once", low=64)
    memory_mib: int = option(
        0, "memory that it may allocate where its function names no limit, MiB; 0: half of the machine's", low=0
    )  # fmt: skip
    drain_s: float = option(2.0, "how long a stop waits for the request that runs, seconds", low=0, high=600)

    def validate(self) -> None:
        for name in ("id", "token", "coordinator"):
            if not getattr(self, name):
                raise ConfigError(
                    f"{COORDINATOR_ENV if name == 'coordinator' else 'ROUSE_INSTANCE_' + name.upper()} is not set; "
                    "instances are started by the coordinator"
                )
        if not self.coordinator.startswith("unix:/"):
            raise ConfigError(f"{COORDINATOR_ENV}={self.coordinator}: want unix:/PATH")

        self.allowed_ports()

    @property
    def coordinator_path(self) -> str:
        """The coordinator's socket."""
        return self.coordinator.removeprefix("unix:")

    @property
    def socket(self) -> str:
        """Where it serves: in its own folder, else beside the coordinator's socket."""
        beside = self.coordinator_path.rpartition("/")[0]
        return f"{self.folder}/{SOCKET}" if self.folder else f"{beside}/{self.id}.sock"

    def allowed_ports(self) -> tuple[int, ...] | None:
        """TCP ports that it may connect to; None: any. Raises ConfigError."""
        try:
            return parse_ports(self.ports)
        except ValueError as error:
            raise ConfigError(f"ROUSE_INSTANCE_PORTS={self.ports}: {error}") from None


def read(environ: MutableMapping[str, str]) -> InstanceConfig:
    """Reads the settings, and takes the token out of `environ`, so that no child of user code inherits it.

    Raises ConfigError.
    """
    known = {key: value for key, value in environ.items() if key.startswith("ROUSE_INSTANCE_")}
    known["ROUSE_INSTANCE_COORDINATOR"] = environ.get(COORDINATOR_ENV, "")
    environ.pop(TOKEN_ENV, None)
    return load(InstanceConfig, "instance", [], known)
