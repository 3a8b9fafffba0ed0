"""Settings of model-repository."""

from __future__ import annotations

from dataclasses import dataclass

from rouse_common.config import ConfigError, ServiceConfig, option
from rouse_model_repository.inspection.paths import Limits


@dataclass(frozen=True)
class ModelRepositoryConfig(ServiceConfig):
    """What model-repository can be told, beside what every service can."""

    nats: str = option("nats://127.0.0.1:4222", "NATS, which holds the artefacts, URL")
    spool_dir: str = option("", "folder for uploads under way, emptied at start; a folder of the service's own")
    max_blob_mib: int = option(16_384, "largest file of an artefact, MiB", low=1, high=1 << 22)
    max_artefact_mib: int = option(131_072, "largest artefact, all its files together, MiB", low=1, high=1 << 24)
    max_files: int = option(10_000, "files of an artefact", low=1, high=10_000)
    uncommitted_s: float = option(
        3600.0,
        "how long an uploaded file waits for its artefact before it is deleted, seconds",
        low=1,
        high=86_400 * 30,
    )
    replicas: int = option(1, "NATS servers that keep a copy of every artefact", low=1, high=5)

    def limits(self) -> Limits:
        return Limits(self.max_artefact_mib << 20, self.max_files)

    def validate(self) -> None:
        """Raises ConfigError naming the setting that cannot be used."""
        if not self.spool_dir:
            raise ConfigError("spool_dir: want a folder for uploads under way, --spool-dir FOLDER")
