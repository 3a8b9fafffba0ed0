"""What the scheduling policy decides on and what it decides: a node's devices as one pool, in values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rouse_policy import eviction, interference

HOST = "host"
DISK = "disk"


class Binding(Enum):
    """When a model gets a device."""

    # For each request the device that suits best.
    LATE = "LATE"
    # For good, when it is first loaded: the baselines Native and NonSwap.
    EARLY = "EARLY"


class Phase(Enum):
    """What a model's copy on a device is doing."""

    LOADING = "LOADING"
    RESTING = "RESTING"
    EXECUTING = "EXECUTING"
    # Its memory comes free by itself.
    LEAVING = "LEAVING"
    # It was told to leave and does not: its memory cannot be counted on.
    STUCK = "STUCK"


@dataclass(frozen=True)
class Device:
    """A device: its memory, and whether its compute slot is taken."""

    name: str
    capacity_bytes: int
    busy: bool


@dataclass(frozen=True)
class Resident:
    """A copy of a model on a device; times in seconds on the clock of `now`. `source` is where one that is LOADING
    comes from: HOST, DISK or a device; empty where it is whole."""

    version: str
    device: str
    phase: Phase
    loaded_at: float = 0.0
    last_used_at: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Model:
    """Args:
    version: version id.
    size_bytes: device memory of its weights; 0 needs no device.
    working_bytes: device memory beside them while one request executes.
    source: where a load would read the weights: HOST or DISK.
    gap_s: mean time between its recent requests, seconds.
    pinned: one copy of it stays on a device.
    served: an instance serves it; by early binding one that nothing serves gives its memory back.
    heavy_on: devices where swapping it in from the host slows its requests down (`heaviness`).
    """

    version: str
    size_bytes: int
    working_bytes: int
    source: str = HOST
    gap_s: float = float("inf")
    pinned: bool = False
    served: bool = True
    heavy_on: tuple[str, ...] = ()


@dataclass(frozen=True)
class Executor:
    """An instance that can take a request now, and the device that it is attached to."""

    instance: str
    version: str
    device: str | None = None


@dataclass(frozen=True)
class Waiter:
    """A request that waits. Tickets count up in the order of arrival; times in seconds. With an instance only
    that one will do; with `tapes` a device answers it by itself, where its model is, and it needs no instance."""

    ticket: int
    version: str
    arrived: float
    deadline: float
    instance: str = ""
    tapes: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The pool as it is. `waiters` in the order in which they are to be served; of a model's waiters only as many need
    to be named as it has free executors and one more, of those that want one instance the first, of those that tapes
    answer as many as there are devices and one more.
    `bring` names pinned models that are on no device, `largest` is the model that needs most of those which
    are not pinned."""

    devices: tuple[Device, ...]
    residents: tuple[Resident, ...]
    models: Mapping[str, Model]
    executors: tuple[Executor, ...]
    waiters: tuple[Waiter, ...]
    bring: tuple[str, ...] = ()
    largest: Model | None = None


@dataclass(frozen=True)
class Hold:
    """An overdue request's claim to a device."""

    device: str
    ticket: int


@dataclass(frozen=True)
class State:
    """Claims to devices, and what chance goes on from; begin with the seed."""

    holds: tuple[Hold, ...] = ()
    chance: interference.State = field(default_factory=interference.State)


@dataclass(frozen=True)
class Settings:
    """Args:
    patience_s: after so long a request without memory is overdue.
    replica_after_s: after so long behind a busy device that holds its model, a request may evict others
        for a second copy.
    loads_per_device: copies in flight to one device; more would only share its bandwidth.
    eviction: settings of the eviction policy.
    binding: whether models share devices or keep the one that they got first.
    interference: how a device is chosen where several could take a load, and the links between them.
    """

    patience_s: float = 0.5
    replica_after_s: float = 0.25
    loads_per_device: int = 1
    eviction: eviction.Settings = field(default_factory=eviction.Settings)
    binding: Binding = Binding.LATE
    interference: interference.Settings = field(default_factory=interference.Settings)


@dataclass(frozen=True)
class Grant:
    """The request gets the device's compute slot and the instance, none where the device answers by itself; `device`
    is HOST without weights."""

    ticket: int
    device: str
    instance: str
    reason: str


@dataclass(frozen=True)
class Load:
    """The version is brought to the device from `source` (HOST, DISK or a sibling device), once the
    victims have left."""

    version: str
    device: str
    source: str
    victims: tuple[eviction.Victim, ...]
    ticket: int
    reason: str


@dataclass(frozen=True)
class Refusal:
    """By early binding the version fits on no device beside those that are bound: waiting would not help."""

    version: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """What to start now, when to decide again if nothing else happens before, and whose requests are refused."""

    grants: tuple[Grant, ...]
    loads: tuple[Load, ...]
    wake_at: float | None
    reason: str
    refusals: tuple[Refusal, ...] = ()
