"""What the calls of the client take and return: plain frozen values, units in their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a function; -1 in `shape` stands for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Scaling:
    """How many instances there may be; `idle_timeout_s` seconds without a request end those above the minimum."""

    min_instances: int = 0
    max_instances: int = 1
    idle_timeout_s: float = 300.0


@dataclass(frozen=True)
class Resources:
    """Beside the weights. 0 means: none, no limit, the device's own setting."""

    working_memory_bytes: int = 0
    host_memory_limit_bytes: int = 0
    threads: int = 0


@dataclass(frozen=True)
class Objective:
    """What is promised: `percentile` (0 to 1) of the requests within `latency_ms`."""

    latency_ms: int
    percentile: float = 0.98


@dataclass(frozen=True)
class Batching:
    """How requests are executed together: up to `max_batch_size` rows, for which one waits `max_delay_us` at most."""

    max_batch_size: int
    max_delay_us: int = 0


@dataclass(frozen=True)
class Limits:
    """What is refused at once; 0 is no limit."""

    max_concurrent_requests: int = 0


@dataclass(frozen=True)
class AddressRange:
    """Virtual addresses that a version's artefact has on every node: weights, state and scratch from `base` on."""

    base: int
    weights_bytes: int
    state_bytes: int
    scratch_bytes: int


@dataclass(frozen=True)
class Version:
    """One immutable version of a function."""

    version_id: str
    version: int
    artefact_digest: str
    format: str
    weights_bytes: int
    artefact_bytes: int
    created_at: datetime | None
    handler: str
    description: str
    options: Mapping[str, str]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    scaling: Scaling
    resources: Resources
    objective: Objective | None
    queue_capacity: int
    batching: Batching | None = None
    limits: Limits = Limits()
    decoupled: bool = False
    pinned: bool = False
    shared: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    # Names of secrets by environment variable.
    secrets: Mapping[str, str] = field(default_factory=dict)
    addresses: AddressRange | None = None
    # "plain" or "rouse", and of the latter: "sharing" or "isolated", and whether requests are replayed as tapes.
    execution: str = "plain"
    isolation: str = "sharing"
    tapes: bool = True


@dataclass(frozen=True)
class Function:
    """A function and its active version. `state` is SLEEPING, WAKING, READY, FAILED or DELETING.

    `traffic` has the percentages of requests that name no version, by the number of the version.
    """

    name: str
    state: str
    reason: str
    ready_instances: int
    version: Version | None
    tenant: str = ""
    traffic: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Instance:
    instance_id: str
    version_id: str
    node: str
    state: str
    reason: str
    since: datetime | None
    # What keeps its code apart from the machine, in words.
    isolation: str = ""


@dataclass(frozen=True)
class Residency:
    """Where a version's weights are on one node: ABSENT, DISK, HOST, SWAPPING_IN, DEVICE or EXECUTING, and why."""

    version_id: str
    node: str
    state: str
    device: str
    size_bytes: int
    reason: str
    swap_ins: int
    since: datetime | None
    # Tapes of the version on the node, requests that they answered, and why the latest request without one had none.
    tapes: int = 0
    replays: int = 0
    eager_reason: str = ""
    # Whether bringing the weights to the device, or to any, slows a request down much, and what was measured.
    heavy: bool = False
    heaviness: str = ""
    # With execution = "rouse": the most that it was seen to hold on a device beside its weights; 0 before that.
    measured_working_bytes: int = 0


@dataclass(frozen=True)
class Usage:
    """Totals: `device_ms` is the time that devices worked, `host_ms` and `host_byte_s` that weights lay in the host
    memory of nodes, and `billed_ms` what is paid for, in milliseconds of a device."""

    requests: int
    failures: int
    device_ms: float
    swap_ins: int
    swap_ms: float
    host_ms: float = 0.0
    host_byte_s: float = 0.0
    billed_ms: float = 0.0


@dataclass(frozen=True)
class UsageRow:
    """What the requests of a tenant to a function used; either is empty where rows stand for the other alone. `hour` is
    when the hour began where rows are hours."""

    tenant: str
    function: str
    usage: Usage
    hour: datetime | None = None


@dataclass(frozen=True)
class Event:
    at: datetime | None
    kind: str
    subject: str
    message: str


@dataclass(frozen=True)
class Description:
    """Everything the mesh knows of one function; events newest first."""

    function: Function
    versions: tuple[Version, ...]
    instances: tuple[Instance, ...]
    residency: tuple[Residency, ...]
    usage: Usage
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Timings:
    """Where the time of a request went, milliseconds."""

    held_ms: float = 0.0
    queue_ms: float = 0.0
    swap_ms: float = 0.0
    execute_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, eq=False)
class Result(Mapping[str, np.ndarray]):
    """The outputs of one inference by name, and how it went.

    Arrays are views of the received bytes and so read-only; copy one to write to it. BYTES outputs
    are object arrays of bytes, BF16 outputs arrive as float32.
    """

    outputs: Mapping[str, np.ndarray]
    timings: Timings
    trace_id: str
    request_id: str
    function: str
    version: str
    node: str
    device: str

    def __getitem__(self, name: str) -> np.ndarray:
        return self.outputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)


@dataclass(frozen=True)
class Deployment:
    """What `deploy` did. `uploaded_bytes` excludes what the mesh had already; `unchanged` says that the
    version had been there before, with the same files and settings."""

    function: str
    version: Version
    state: str
    files: int
    total_bytes: int
    uploaded_bytes: int
    hash_ms: float
    upload_ms: float
    wake_ms: float
    unchanged: bool = False


@dataclass(frozen=True)
class Progress:
    """A step of `deploy`. `stage` is "hash", "upload", "deploy", "wake", "traffic" or "done"; bytes in the first two.

    `deploy` calls the callback from one thread at a time, not always the caller's own.
    """

    stage: str
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True)
class Span:
    """A piece of a trace; `error` is empty where it ended well."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    service: str
    start_unix_nanos: int
    end_unix_nanos: int
    attributes: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def duration_ms(self) -> float:
        return max(0, self.end_unix_nanos - self.start_unix_nanos) / 1e6


@dataclass(frozen=True)
class Device:
    """mapped + reserved + free = capacity, always."""

    name: str
    kind: str
    capacity_bytes: int
    mapped_bytes: int
    reserved_bytes: int
    free_bytes: int
    executing: str
    swap_ins: int
    evictions: int
    residents: tuple[Residency, ...]


@dataclass(frozen=True)
class Node:
    node: str
    state: str
    devices: tuple[Device, ...]
    host_used_bytes: int
    host_capacity_bytes: int
    instances: int
    last_heartbeat: datetime | None


@dataclass(frozen=True)
class Service:
    """`state` is SERVING, NOT_SERVING or UNREACHABLE."""

    name: str
    address: str
    state: str


@dataclass(frozen=True)
class Status:
    """The whole mesh as it is now.

    Args:
        http_address: where the gateway serves REST v2, host:port; empty where it does not.
    """

    mesh_version: str
    functions: int
    services: tuple[Service, ...]
    nodes: tuple[Node, ...]
    http_address: str = ""
