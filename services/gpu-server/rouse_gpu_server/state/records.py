"""The things on a node that gpu-server keeps track of."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rouse_contracts import specs
from rouse_contracts.functions import FunctionVersion
from rouse_contracts.repository import Artefact as ArtefactMessage
from rouse_contracts.repository import State
from rouse_gpu_server.backends import DeviceBackend, Segment
from rouse_gpu_server.state.ledger import PAGE_BYTES, PIECE_BYTES, Ledger, round_up
from rouse_gpu_server.state.residency import Machine, Tier
from rouse_policy import heaviness, keep_alive, scheduling

# The kinds of device (`Device.kind`); a node has devices of one kind.
KINDS = HOST, CUDA = "host", "cuda"
# Weight of the newest gap in the mean time between requests.
GAP_SMOOTHING = 0.3
KEPT_SWAPS = 8
# An executor that refuses so many attachments in a row is of no use and is ended.
MAX_REFUSALS = 3


@dataclass
class Artefact:
    """An artefact on the node's tiers.

    Args:
        digest: its content hash.
        machine: ABSENT, DISK or HOST.
        message: what model-repository says of it; None before it was asked.
        path: folder of its files; None where absent.
        image: file of its host image; None where there is none.
        last_used_at: monotonic seconds.
        held_until: monotonic seconds until which it stays although nothing serves it yet.
        pins: copies that are reading it, builds that are making it.
        states: materialised states of it that are on the node's disk.
        last_request_at: when a request last came for one of its versions, monotonic seconds.
        gaps: between those requests.
        return_s: how long its image took to be built from disk, the last time; 0 where it never was here.
    """

    digest: str
    machine: Machine
    message: ArtefactMessage | None = None
    path: Path | None = None
    image: Path | None = None
    last_used_at: float = 0.0
    held_until: float = 0.0
    pins: int = 0
    states: tuple[State, ...] = ()
    last_request_at: float | None = None
    gaps: keep_alive.State = field(default_factory=keep_alive.State)
    return_s: float = 0.0

    def note_request(self, now: float) -> None:
        """Learns from a request."""
        if self.last_request_at is not None:
            self.gaps = keep_alive.learn(self.gaps, now - self.last_request_at)
        self.last_request_at = self.last_used_at = now

    @property
    def image_bytes(self) -> int:
        return self.message.layout.image_bytes if self.message is not None else 0

    @property
    def on_disk(self) -> bool:
        return self.machine.state is not Tier.ABSENT


@dataclass(frozen=True)
class Swap:
    """One finished swap-in, for the traces of all who waited for it; times in seconds since 1970.

    `number` counts the swaps of its model.
    """

    number: int
    device: str
    size_bytes: int
    source: str
    evicted: tuple[str, ...]
    reason: str
    started: float
    ended: float
    error: str = ""


@dataclass
class Model:
    """A version that this node works with.

    Args:
        version: as it was given to us.
        artefact: its weights; versions of one artefact share it.
        gap_s: smoothed time between requests, seconds; infinite before the second.
        swaps: the newest swaps, whether or not they succeeded; `swaps_ended` counts all.
        dropping: it is being dropped and takes no requests.
        swap_failed_at: when a load last failed, monotonic seconds; None where none did since one succeeded.
        left: the copy that was evicted last, as it ended: back in host memory, with the reason.
        unbound: by early binding, why no device has room for it; empty where one has, or was not asked for yet.
        measured: how long its requests take, by device; `weights_on`: whether that makes it heavy there.
        replays: requests that tapes answered.
        eager_reason: why requests were not recorded, or gave no tape, the latest of them.
        measured_bytes: of a redirected function, the most that it held on a device beside the weights, whole pages.
    """

    version: FunctionVersion
    artefact: Artefact
    gap_s: float = float("inf")
    last_arrival: float | None = None
    swap_ins: int = 0
    swaps_ended: int = 0
    swaps: deque[Swap] = field(default_factory=lambda: deque(maxlen=KEPT_SWAPS))
    dropping: bool = False
    swap_failed_at: float | None = None
    left: Machine | None = None
    unbound: str = ""
    measured: dict[str, heaviness.Measured] = field(default_factory=dict)
    weights_on: dict[str, heaviness.Decision] = field(default_factory=dict)
    replays: int = 0
    eager_reason: str = ""
    measured_bytes: int = 0

    @property
    def version_id(self) -> str:
        return self.version.version_id

    @property
    def function(self) -> str:
        return self.version.spec.name

    @property
    def size_bytes(self) -> int:
        """Device memory of its weights: whole pages, or a native executor's pieces."""
        known = self.artefact.image_bytes if self.artefact.message is not None else self.version.weights_bytes
        return round_up(known, PIECE_BYTES if specs.is_redirected(self.version.spec) else PAGE_BYTES)

    @property
    def declared_bytes(self) -> int:
        """What its specification says that a request needs beside the weights."""
        return self.version.spec.resources.working_memory_bytes

    @property
    def working_bytes(self) -> int:
        """Device memory beside the weights while one request executes, whole pages: declared, or measured as more."""
        return max(round_up(self.declared_bytes), self.measured_bytes)

    @property
    def staying_bytes(self) -> int:
        """The part of it that is not given back between requests: sessions and replays keep it for the next one."""
        return self.measured_bytes

    @property
    def passing_bytes(self) -> int:
        """The part of it that is needed while a lease is held only."""
        return self.working_bytes - self.staying_bytes

    def note_arrival(self, now: float, requests: int = 1) -> None:
        """Learns from requests that came since the last one, evenly."""
        if self.last_arrival is not None:
            gap = (now - self.last_arrival) / requests
            kept = (1 - GAP_SMOOTHING) ** requests if self.gap_s != float("inf") else 0.0
            self.gap_s = (1 - kept) * gap + (kept * self.gap_s if kept else 0.0)
        self.last_arrival = now
        self.artefact.note_request(now)


@dataclass(eq=False)
class Resident:
    """A model's copy on one device; times in monotonic seconds.

    Args:
        segment: its memory, once allocated.
        promised_bytes: memory that is reserved for it in the ledger and not mapped yet.
        staying_bytes: memory that is reserved in the ledger for what it keeps beside its weights.
        source: where its weights come from while they do: host, disk or a device.
        moved_s: how long they were on their way from host memory; None where they came from elsewhere, or where
            other copies were on the same links.
        used: a lease was granted on it.
        brought: why it was brought here, and from where.
    """

    model: Model
    device: Device
    machine: Machine
    segment: Segment | None = None
    promised_bytes: int = 0
    staying_bytes: int = 0
    source: str = ""
    moved_s: float | None = None
    used: bool = False
    brought: str = ""
    loaded_at: float = 0.0
    last_used_at: float = 0.0

    @property
    def state(self) -> Tier:
        return self.machine.state

    @property
    def owed_bytes(self) -> int:
        """What it keeps beside its weights and the ledger had no room for yet."""
        here = self.state is not Tier.EVICTING and (self.segment is not None or self.promised_bytes > 0)
        return max(0, self.model.staying_bytes - self.staying_bytes) if here else 0


@dataclass(eq=False)
class Device:
    """A device: its memory, what is on it, and who computes on it.

    Args:
        growths: how often a model that is here turned out to need more than was known.
    """

    name: str
    kind: str
    ledger: Ledger
    backend: DeviceBackend
    residents: dict[str, Resident] = field(default_factory=dict)
    lease: Lease | None = None
    swap_ins: int = 0
    evictions: int = 0
    growths: int = 0

    @property
    def owed_bytes(self) -> int:
        """What is kept beside weights here and the ledger had no room for yet."""
        return sum(r.owed_bytes for r in self.residents.values())

    def has_room_for(self, newcomer: Resident) -> bool:
        """Whether the newcomer can be mapped so that each resident can still execute."""
        size = newcomer.model.size_bytes + newcomer.model.staying_bytes
        passing = max(r.model.passing_bytes for r in [newcomer, *self._runnable()])
        taken = self.ledger.mapped_bytes + self.owed_bytes
        taken += sum(r.promised_bytes + r.staying_bytes for r in self.residents.values())
        return taken + size + passing <= self.ledger.capacity_bytes and size <= self.ledger.free_bytes

    def settle(self) -> None:
        """Reserves what residents keep beside their weights, as far as there is room that nobody else counts on."""
        for resident in self.residents.values():
            size = min(resident.owed_bytes, self._spare_bytes())
            self.ledger.reserve(size)
            resident.staying_bytes += size

    def _runnable(self) -> list[Resident]:
        return [r for r in self.residents.values() if r.state is not Tier.EVICTING and (r.segment or r.promised_bytes)]

    def _spare_bytes(self) -> int:
        """Free memory but for what loads will take that have begun, and what the next lease will."""
        coming = [
            r for r in self.residents.values() if r.state is Tier.SWAPPING_IN and not (r.segment or r.promised_bytes)
        ]
        loads = sum(r.model.size_bytes + r.model.staying_bytes for r in coming)
        passing = max((r.model.passing_bytes for r in [*coming, *self._runnable()]), default=0)
        if self.lease is not None:
            passing = max(0, passing - self.lease.passing_bytes)
        return max(0, self.ledger.free_bytes - loads - passing)


class Phase(Enum):
    """What is known of an executor's attachment."""

    UNKNOWN = "UNKNOWN"
    DETACHED = "DETACHED"
    ATTACHING = "ATTACHING"
    ATTACHED = "ATTACHED"
    GONE = "GONE"


class Turn(Enum):
    """What happens to it."""

    DETACHED = "DETACHED"
    ATTACH = "ATTACH"
    ATTACHED = "ATTACHED"
    DOUBT = "DOUBT"
    GONE = "GONE"


EXECUTOR_TABLE = {
    (Phase.UNKNOWN, Turn.DETACHED): Phase.DETACHED,
    (Phase.DETACHED, Turn.ATTACH): Phase.ATTACHING,
    (Phase.ATTACHING, Turn.ATTACHED): Phase.ATTACHED,
    (Phase.ATTACHING, Turn.DOUBT): Phase.UNKNOWN,
    (Phase.ATTACHED, Turn.DOUBT): Phase.UNKNOWN,
    (Phase.DETACHED, Turn.DOUBT): Phase.UNKNOWN,
    (Phase.UNKNOWN, Turn.GONE): Phase.GONE,
    (Phase.DETACHED, Turn.GONE): Phase.GONE,
    (Phase.ATTACHING, Turn.GONE): Phase.GONE,
    (Phase.ATTACHED, Turn.GONE): Phase.GONE,
}


@dataclass(eq=False)
class Executor:
    """An instance's process.

    Args:
        started_at: start time of the process where it is visible, against reuse of its pid.
        attached: the resident that it may have mapped; kept until it is known to be detached or gone.
        attachment_id: of the present attachment.
        refusals: attachments that failed in a row.
        stuck: it did not detach within the limit.
        condemned: the coordinator was told to end it.
    """

    instance_id: str
    version_id: str
    address: str
    pid: int
    phase: Phase = Phase.UNKNOWN
    started_at: int | None = None
    attached: Resident | None = None
    attachment_id: str = ""
    lease: Lease | None = None
    leases_made: int = 0
    refusals: int = 0
    stuck: bool = False
    condemned: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def turn(self, event: Turn) -> None:
        """Moves its phase on. Raises RuntimeError where the table has no such step."""
        following = EXECUTOR_TABLE.get((self.phase, event))
        if following is None:
            raise RuntimeError(f"executor {self.instance_id}: {event.name} is not allowed in {self.phase.name}")
        self.phase = following

    @property
    def usable(self) -> bool:
        """Whether it can take a request now."""
        known = self.phase in (Phase.DETACHED, Phase.ATTACHED)
        return known and self.lease is None and not self.condemned and self.refusals < MAX_REFUSALS

    @property
    def alive(self) -> bool:
        return self.phase is not Phase.GONE

    @property
    def is_instance(self) -> bool:
        """Whether there is a process; a device that answers by tapes has none."""
        return bool(self.instance_id)


def device_itself(version_id: str) -> Executor:
    """The executor of one lease under which only tapes answer; in no list of executors."""
    return Executor("", version_id, "", 0, phase=Phase.ATTACHED, attachment_id=f"tapes-{uuid.uuid4().hex}")


@dataclass(eq=False)
class Lease:
    """The right to compute on a device with an executor; times in monotonic seconds.

    Args:
        resident: None for models without weights, which take no device.
        acquire_id: the caller's name for the call that it was granted to; may be empty.
        ending: it was given up and its executor is being made idle.
        tenant, weight: whose request it was granted to, and its share of contended devices.
        charged_s: what the tenant was charged for it so far.
        passing_bytes: memory that is reserved for it on the device.
        first: it is the first after the weights came; `moved_s` as of the resident.
    """

    ticket: int
    model: Model
    executor: Executor
    resident: Resident | None
    acquire_id: str
    owner: str
    incarnation: str
    expires_at: float
    granted_at: float
    tenant: str = ""
    weight: int = 1
    charged_s: float = 0.0
    passing_bytes: int = 0
    first: bool = False
    moved_s: float | None = None
    lease_id: str = ""
    ending: bool = False

    @property
    def device_name(self) -> str:
        return self.resident.device.name if self.resident is not None else scheduling.HOST
