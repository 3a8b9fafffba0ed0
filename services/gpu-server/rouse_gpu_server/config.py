"""Settings of gpu-server, and the devices that they name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rouse_common.config import ConfigError, ServiceConfig, option, parse_address, parse_size
from rouse_gpu_server import wiring
from rouse_gpu_server.state.records import CUDA, KINDS
from rouse_gpu_server.wiring import Wiring
from rouse_policy import eviction, heaviness, interference, tiering
from rouse_policy.scheduling import DISK, HOST, Binding, Settings

DEVICE = re.compile(r"(?P<kind>[a-z]+):(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,31})=(?P<size>.+)")
# Leases of functions without weights name this, and the folder of host images is called so.
RESERVED_NAMES = (HOST, DISK)


@dataclass(frozen=True)
class DeviceSpec:
    """A device as it was asked for."""

    kind: str
    name: str
    capacity_bytes: int


def parse_device(text: str) -> DeviceSpec:
    """'host:cpu0=2GiB' as its parts. Raises ConfigError."""
    match = DEVICE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--device={text}: want KIND:NAME=SIZE, as host:cpu0=2GiB")
    kind, name = match["kind"], match["name"]
    if kind not in KINDS:
        raise ConfigError(f"--device={text}: unknown kind '{kind}'; want {' or '.join(KINDS)}")
    if name in RESERVED_NAMES:
        raise ConfigError(f"--device={text}: '{name}' is a reserved name; choose another")
    return DeviceSpec(kind, name, parse_size(match["size"], f"--device={kind}:{name}"))


@dataclass(frozen=True)
class GpuServerConfig(ServiceConfig):
    node_id: str = option("node-0", "name of this node")
    link_listen: str = option(
        "127.0.0.1:0", "address of the link that node-router takes leases by, host:port or unix:PATH"
    )
    model_repository: str = option("127.0.0.1:7002", "address of model-repository")
    coordinator: str = option("127.0.0.1:7012", "address of this node's coordinator")
    device: tuple[str, ...] = option(
        ("host:cpu0=2GiB",), "a device, KIND:NAME=SIZE; repeat for more. cuda: the driver's devices, in its order"
    )
    topology: str = option("", "TOML file of how the devices are connected; empty: no link is shared or limited")
    memory_dir: str = option("/dev/shm/rouse", "folder on a tmpfs for host copies and device memory")  # noqa: S108
    cache_dir: str = option("/var/tmp/rouse/cache", "folder for the node's disk tier")  # noqa: S108
    host_memory: str = option("4GiB", "memory for host copies of weights, as 4GiB")
    cache_size: str = option("64GiB", "disk space for artefacts, as 64GiB")
    threads: int = option(0, "threads of an executor whose function names none; 0: cores / devices", low=0, high=1024)
    executors: bool = option(
        False, "start a native executor for each device, for functions with execution = 'rouse' (docs/native.md)"
    )
    executor_program: str = option("", "the native executor, a program; empty: the one that was built here")
    executors_kept: int = option(
        4, "native executors that a CUDA device keeps after their version has left it, each with a context there",
        low=0, high=1024,
    )  # fmt: skip
    max_waiting: int = option(1024, "requests that may wait for a device", low=1, high=100_000)
    min_residency_ms: int = option(250, "how long a hot model stays after its load, ms", low=0, high=60_000)
    patience_ms: int = option(500, "after so long a request that needs memory is overdue, ms", low=1, high=600_000)
    replica_after_ms: int = option(
        250, "after so long behind a busy device a request may evict others for a second copy, ms", low=1, high=600_000
    )
    binding: str = option(
        "late",
        "late: models share the devices; early: each keeps the device that it gets first, and what finds no room is "
        "refused",
        choices=("late", "early"),
    )
    scheduling: str = option(
        "interference",
        "where a load goes: interference: where it disturbs others least, from the fastest source; random: by chance, "
        "from the host",
        choices=("interference", "random"),
    )
    seed: int = option(0, "what chance begins with", low=0, high=2**63 - 1)
    eviction_order: str = option(
        "pool", "pool: light models leave before heavy ones; lru: the least recently used one", choices=("pool", "lru")
    )
    heavy_from: float = option(
        2.0, "a model is heavy whose requests take so many times as long with their swap as without", low=1, high=1000
    )
    loads_per_device: int = option(1, "copies in flight to one device", low=1, high=16)
    attach_limit_s: float = option(10.0, "how long an executor may take to attach, seconds", low=0.05, high=600)
    detach_limit_s: float = option(
        10.0, "how long an executor may take to finish and detach before it is ended, seconds", low=0.05, high=600
    )
    stage_limit_s: float = option(
        900.0, "how long bringing an artefact to the node may take, seconds", low=1, high=7200
    )
    stage_hold_s: float = option(
        180.0, "how long a staged model keeps its place while no instance serves it yet, seconds", low=0, high=3600
    )
    host_weight: float = option(
        100.0, "seconds of all host memory that one second of a request's waiting is worth: what sleeps longer leaves "
        "host memory for disk; 0: nothing does", low=0, high=1e6,
    )  # fmt: skip
    host_min_idle_s: float = option(
        300.0, "how long a model stays in host memory after its last request at least, seconds", low=0, high=1e6
    )
    host_look_s: float = option(5.0, "how often sleeping models are looked at, seconds", low=0.05, high=3600)
    decision_log: str = option("", "file that decisions are added to as JSON, up to 64 MiB, for replaying; empty: none")
    lease_margin_s: float = option(1.0, "how long a lease outlives its request's deadline, seconds", low=0, high=60)

    def validate(self) -> None:
        """Raises ConfigError for what the ranges of single settings do not catch."""
        names = [spec.name for spec in self.devices]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"--device: '{name}' is named {names.count(name)} times; names are unique")
        if not self.link_listen.startswith("unix:"):
            parse_address(self.link_listen, "--link-listen")
        parse_address(self.model_repository, "--model-repository")
        parse_address(self.coordinator, "--coordinator")
        for what, folder in (("--memory-dir", self.memory_dir), ("--cache-dir", self.cache_dir)):
            if not Path(folder).is_absolute():
                raise ConfigError(f"{what}={folder}: want an absolute path")
        if len(kinds := {spec.kind for spec in self.devices}) > 1:
            raise ConfigError(
                f"--device: one node has devices of one kind, and these are {' and '.join(sorted(kinds))}"
            )
        if CUDA in kinds and not self.executors:
            raise ConfigError("--device=cuda:…: only native executors compute on CUDA; start with --executors")
        _ = self.host_bytes, self.cache_bytes, self.wiring

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        if not self.device:
            raise ConfigError("--device: want at least one device, as host:cpu0=2GiB")
        return tuple(parse_device(text) for text in self.device)

    @property
    def wiring(self) -> Wiring:
        """How the devices are connected. Reads the file. Raises ConfigError."""
        names = [spec.name for spec in self.devices]
        return wiring.read(Path(self.topology), names) if self.topology else Wiring()

    @property
    def host_bytes(self) -> int:
        return parse_size(self.host_memory, "--host-memory")

    @property
    def cache_bytes(self) -> int:
        return parse_size(self.cache_size, "--cache-size")

    @property
    def default_threads(self) -> int:
        return self.threads or max(1, (os.cpu_count() or 1) // len(self.devices))

    @property
    def tiering(self) -> tiering.Settings:
        return tiering.Settings(weight=self.host_weight, min_idle_s=self.host_min_idle_s)

    @property
    def heaviness(self) -> heaviness.Settings:
        return heaviness.Settings(threshold=self.heavy_from)

    @property
    def policy(self) -> Settings:
        return Settings(
            patience_s=self.patience_ms / 1000,
            replica_after_s=self.replica_after_ms / 1000,
            loads_per_device=self.loads_per_device,
            eviction=eviction.Settings(
                min_residency_s=self.min_residency_ms / 1000, order=eviction.Order[self.eviction_order.upper()]
            ),
            binding=Binding[self.binding.upper()],
            interference=interference.Settings(interference.Mode[self.scheduling.upper()], self.wiring.topology),
        )
