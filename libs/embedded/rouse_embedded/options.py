"""What an embedded mesh can be told, and defaults that fit the machine."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rouse_common.config import ConfigError, parse_address, parse_size

DEVICE = re.compile(r"(?P<kind>[a-z]+):(?P<name>[A-Za-z0-9][A-Za-z0-9_-]{0,31})=(?P<size>.+)")
HOST, CUDA = DEVICE_KINDS = ("host", "cuda")
# Instead of an address: the gateway serves gRPC alone.
NO_HTTP = "off"
MAX_NODES = 64
MAX_DEVICES = 64
MIB = 1 << 20

DEFAULT_DEVICE_BYTES = 2 << 30
DEFAULT_HOST_BYTES = 4 << 30
# Of the memory that is free when the mesh starts, all nodes together.
DEVICE_SHARE = 0.2
HOST_SHARE = 0.3
LEAST_BYTES = 64 * MIB


@dataclass(frozen=True)
class MeshOptions:
    """Args:
    data_dir: everything that is kept between runs.
    nodes: how many nodes to run on this machine.
    devices: devices of every node, KIND:NAME=SIZE; none takes one `host:gpu0` that fits the machine.
    host_memory: a node's memory for sleeping models, a size; empty takes one that fits the machine.
    listen: the gateway's host:port; empty takes 127.0.0.1:8001, or a free port where that is taken.
    http_listen: the gateway's host:port for HTTP; empty takes 127.0.0.1:8000, or a free port where that is
        taken; "off" serves no HTTP.
    metrics: whether every service serves Prometheus metrics.
    otlp_endpoint: OTLP/gRPC endpoint that spans are exported to; empty keeps them in the data folder only.
    log_level: of every service.
    tls: whether services prove themselves to each other, and the gateway to clients, by certificates.
    auth: whether callers need an API key; the first one, an administrator's, is made in the data folder.
    executors: whether functions may have their operations carried out by the devices' native executors.
    settings: more settings by service and name, as {"scaler": {"period_s": "0.2"}}.
    """

    data_dir: Path
    nodes: int = 1
    devices: tuple[str, ...] = ()
    host_memory: str = ""
    listen: str = ""
    http_listen: str = ""
    metrics: bool = False
    otlp_endpoint: str = ""
    log_level: str = "INFO"
    tls: bool = False
    auth: bool = False
    executors: bool = False
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def validate(self) -> None:
        """Raises ConfigError that names the bad value and what is allowed."""
        if not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"--nodes={self.nodes}: want 1 to {MAX_NODES}")
        if len(self.devices) > MAX_DEVICES:
            raise ConfigError(f"--device is given {len(self.devices)} times: want {MAX_DEVICES} at most")
        self._validate_devices()
        if self.host_memory:
            parse_size(self.host_memory, "--host-memory")
        if self.listen:
            parse_address(self.listen, "--listen")
        if self.http_listen not in ("", NO_HTTP):
            parse_address(self.http_listen, "--http")

    def _validate_devices(self) -> None:
        names = [device.name for device in self.parsed_devices()]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"--device: two devices are named {name}")
        kinds = {device.kind for device in self.parsed_devices()}
        if len(kinds) > 1:
            raise ConfigError(f"--device: a node has devices of one kind, and these are {' and '.join(sorted(kinds))}")
        if CUDA in kinds and not self.executors:
            raise ConfigError("--device=cuda:…: only native executors compute on CUDA; start with --executors")
        if CUDA in kinds and self.nodes > 1:
            raise ConfigError(f"--nodes={self.nodes}: nodes do not share CUDA devices; start one node")

    def parsed_devices(self) -> list[Device]:
        """The devices of every node. Raises ConfigError."""
        return [parse_device(text) for text in self.devices]

    @property
    def host_memory_bytes(self) -> int:
        return parse_size(self.host_memory, "--host-memory")

    @property
    def memory_bytes(self) -> int:
        """What all nodes together may keep in memory files."""
        devices = sum(device.capacity_bytes for device in self.parsed_devices() if device.kind == HOST)
        each = devices + self.host_memory_bytes
        return self.nodes * each


@dataclass(frozen=True)
class Device:
    kind: str
    name: str
    capacity_bytes: int


def parse_device(text: str) -> Device:
    """'host:gpu0=2GiB' as its parts. Raises ConfigError."""
    found = DEVICE.fullmatch(text)
    if found is None:
        raise ConfigError(f"--device={text}: want KIND:NAME=SIZE, as host:gpu0=2GiB")
    if found["kind"] not in DEVICE_KINDS:
        raise ConfigError(f"--device={text}: unknown kind {found['kind']}; known: {', '.join(DEVICE_KINDS)}")
    return Device(found["kind"], found["name"], parse_size(found["size"], f"--device {found['name']}"))


def fitted(options: MeshOptions, free_bytes: int) -> MeshOptions:
    """The options with what was left open filled in for a machine with `free_bytes` of free memory."""
    changes: dict[str, object] = {}
    if not options.devices:
        size = _fit(DEFAULT_DEVICE_BYTES, free_bytes * DEVICE_SHARE / options.nodes)
        changes["devices"] = (f"host:gpu0={size // MIB}MiB",)
    if not options.host_memory:
        changes["host_memory"] = f"{_fit(DEFAULT_HOST_BYTES, free_bytes * HOST_SHARE / options.nodes) // MIB}MiB"
    return dataclasses.replace(options, **changes)  # type: ignore[arg-type]


def _fit(default: int, bound: float) -> int:
    return max(LEAST_BYTES, min(default, int(bound)))


def default_data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """ROUSE_DATA_DIR, else ~/.rouse."""
    return Path(environ.get("ROUSE_DATA_DIR") or Path.home() / ".rouse")
