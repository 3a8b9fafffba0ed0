"""What an instance is told when it is started: by environment only, since it holds a token."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from rouse_common.config import ConfigError, load, option

COORDINATOR_ENV = "ROUSE_COORDINATOR"
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

    @property
    def runtime_dir(self) -> str:
        """The folder of the coordinator's socket; this instance's own is made beside it."""
        return self.coordinator.removeprefix("unix:").rpartition("/")[0]


def read(environ: MutableMapping[str, str]) -> InstanceConfig:
    """Reads the settings, and takes the token out of `environ`, so that no child of user code inherits it.

    Raises ConfigError.
    """
    known = {key: value for key, value in environ.items() if key.startswith("ROUSE_INSTANCE_")}
    known["ROUSE_INSTANCE_COORDINATOR"] = environ.get(COORDINATOR_ENV, "")
    environ.pop(TOKEN_ENV, None)
    return load(InstanceConfig, "instance", [], known)
