"""Which node gets one more instance of a version.

Decided by bytes, not by counts: a node must have a device that holds weights and working memory together,
and host memory for the copy that never leaves it. Among those, a node that is near the weights already
wins (Torpor, section 4: a swap from the host is cheap, a load from storage is not), then the one with room
and little to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum


class Tier(IntEnum):
    """How near to a device the artefact is on a node; higher is nearer."""

    ABSENT = 0
    DISK = 1
    HOST = 2
    DEVICE = 3


class Refusal(Enum):
    """Why no node was chosen."""

    NO_NODE = "NO_NODE"
    MODEL_TOO_LARGE = "MODEL_TOO_LARGE"


@dataclass(frozen=True)
class DeviceView:
    """A device, in bytes; free is what neither weights nor working memory take now."""

    name: str
    capacity_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class NodeView:
    """A node as it was last reported.

    Attributes:
        ready: whether its heartbeats come; others are looked at only to tell why nothing fits.
        tier: where the version's artefact is.
        host_capacity_bytes: memory for host copies; 0 where the node has not said.
        host_free_bytes: what is left of it, starts that are on their way taken off.
        load: requests waiting and executing.
        instances: live ones of all functions.
        same_version: live ones of the version that is to be placed.
        failed_starts: recent starts of this version that failed here.
    """

    node_id: str
    ready: bool
    devices: tuple[DeviceView, ...]
    tier: Tier = Tier.ABSENT
    host_capacity_bytes: int = 0
    host_free_bytes: int = 0
    load: int = 0
    instances: int = 0
    same_version: int = 0
    failed_starts: int = 0


@dataclass(frozen=True)
class Snapshot:
    """What is to be placed, and where it could go.

    Attributes:
        weights_bytes: size of the weights' image; 0 for a function that needs no device.
        working_memory_bytes: device memory beside them while a request executes.
    """

    function: str
    weights_bytes: int
    working_memory_bytes: int
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True)
class Settings:
    """Nothing can be set yet."""


@dataclass(frozen=True)
class State:
    """Nothing is remembered: what was placed before is in the snapshot as live instances."""


@dataclass(frozen=True)
class Decision:
    """The node, or the refusal; never both. `reason` says why, with the numbers."""

    node_id: str | None
    refusal: Refusal | None
    reason: str


def mib(size_bytes: int) -> str:
    """Bytes for people."""
    return f"{size_bytes / (1 << 20):.1f} MiB"


def needed_bytes(weights_bytes: int, working_memory_bytes: int) -> int:
    """What one device has to hold; a function without weights needs none."""
    return weights_bytes + working_memory_bytes if weights_bytes else 0


def misfit(weights_bytes: int, working_memory_bytes: int, nodes: tuple[NodeView, ...]) -> str | None:
    """Why no node could ever hold such a version, naming the largest device; None where one could."""
    need = needed_bytes(weights_bytes, working_memory_bytes)
    if any(_could_hold(node, weights_bytes, need) for node in nodes):
        return None
    what = f"{mib(weights_bytes)} of weights and {mib(working_memory_bytes)} of working memory need {mib(need)}"
    largest = max(
        ((device.capacity_bytes, node.node_id, device.name) for node in nodes for device in node.devices), default=None
    )
    if largest is None:
        return f"{what} on one device, and no node has a device"
    capacity, node_id, name = largest
    if capacity < need:
        return f"{what} on one device; the largest device, {name} of node {node_id}, has {mib(capacity)}"
    host, host_node = max((node.host_capacity_bytes, node.node_id) for node in nodes)
    return (
        f"{what}; the largest device, {name} of node {node_id}, has {mib(capacity)}, but the host copy needs "
        f"{mib(weights_bytes)} of host memory and node {host_node}, which has most, has {mib(host)}"
    )


@dataclass(frozen=True)
class Weights:
    """What a version takes of a device: its weights and the working memory beside them, in bytes."""

    weights_bytes: int
    working_bytes: int
    pinned: bool

    @property
    def needed_bytes(self) -> int:
        return needed_bytes(self.weights_bytes, self.working_bytes)


def pin_misfit(versions: Sequence[Weights], nodes: tuple[NodeView, ...]) -> str | None:
    """Why the pinned ones of some versions do not leave room for the largest other; None where they do.

    One device is kept for the largest other version, each in turn, and the pinned ones are put onto all devices,
    the largest first, each where it fits first. Sufficient, not necessary: a tight packing may be missed.
    """
    pinned = sorted((v for v in versions if v.pinned and v.weights_bytes), key=lambda v: v.needed_bytes, reverse=True)
    capacities = [device.capacity_bytes for node in nodes for device in node.devices]
    if not pinned or not capacities:
        return None
    largest = max((v for v in versions if not v.pinned), key=lambda v: v.needed_bytes, default=None)
    kept = [largest] if largest is not None and largest.weights_bytes else []
    if any(_packs(pinned, kept, capacities, index) for index in range(len(capacities))):
        return None
    total = mib(sum(v.weights_bytes for v in pinned))
    what = f"with it {len(pinned)} pinned functions have {total} of weights"
    if not kept:
        return f"{what}, which do not fit on the {len(capacities)} devices together"
    room = mib(kept[0].needed_bytes)
    return f"{what}; beside them no device has room for the largest other function, which needs {room}"


def _packs(pinned: Sequence[Weights], kept: list[Weights], capacities: Sequence[int], index: int) -> bool:
    """Whether all find room where device `index` keeps room for `kept`."""
    on: list[list[Weights]] = [kept if i == index else [] for i in range(len(capacities))]
    if not _runs(on[index], capacities[index]):
        return False
    for version in pinned:
        # The kept device last: it is the one that is short.
        order = sorted(range(len(capacities)), key=lambda i: i == index)
        place = next((i for i in order if _runs([*on[i], version], capacities[i])), None)
        if place is None:
            return False
        on[place] = [*on[place], version]
    return True


def _runs(versions: Sequence[Weights], capacity_bytes: int) -> bool:
    working = max((v.working_bytes for v in versions), default=0)
    return sum(v.weights_bytes for v in versions) + working <= capacity_bytes


def decide(snapshot: Snapshot, state: State, settings: Settings, now: float) -> tuple[Decision, State]:
    """Chooses a node for one more instance. The order of the snapshot's nodes does not matter."""
    need = needed_bytes(snapshot.weights_bytes, snapshot.working_memory_bytes)
    ready = [node for node in snapshot.nodes if node.ready]
    fitting = [node for node in ready if _could_hold(node, snapshot.weights_bytes, need)]
    if not fitting:
        return _refuse(snapshot, ready), state
    chosen = min(fitting, key=lambda node: _rank(node, snapshot.weights_bytes, need))
    return Decision(chosen.node_id, None, _explain(chosen, snapshot.weights_bytes, need, len(fitting))), state


def _could_hold(node: NodeView, weights_bytes: int, need: int) -> bool:
    if not weights_bytes:
        return True
    if node.host_capacity_bytes and weights_bytes > node.host_capacity_bytes:
        return False
    return any(device.capacity_bytes >= need for device in node.devices)


def _refuse(snapshot: Snapshot, ready: list[NodeView]) -> Decision:
    reason = misfit(snapshot.weights_bytes, snapshot.working_memory_bytes, snapshot.nodes)
    if snapshot.nodes and reason is not None:
        return Decision(None, Refusal.MODEL_TOO_LARGE, reason)
    if not ready:
        return Decision(None, Refusal.NO_NODE, f"none of {len(snapshot.nodes)} registered nodes is ready")
    away = ", ".join(sorted(node.node_id for node in snapshot.nodes if not node.ready))
    return Decision(
        None, Refusal.NO_NODE, f"no device of {len(ready)} ready nodes is large enough; nodes that are away: {away}"
    )


def _host_room(node: NodeView, weights_bytes: int) -> bool:
    if node.tier >= Tier.HOST or not node.host_capacity_bytes:
        return True
    return node.host_free_bytes >= weights_bytes


def _free_bytes(node: NodeView, need: int) -> int:
    """The most that one device which is large enough has free."""
    return max((device.free_bytes for device in node.devices if device.capacity_bytes >= need), default=0)


def _rank(node: NodeView, weights_bytes: int, need: int) -> tuple[object, ...]:
    """Smaller is better; the node's id makes the order total."""
    free = _free_bytes(node, need)
    crowded = node.same_version >= max(1, len(node.devices))
    fits_now = node.tier is Tier.DEVICE or free >= need
    return (
        node.failed_starts,
        not _host_room(node, weights_bytes),
        # One more instance than there are devices cannot compute any sooner there.
        crowded,
        -node.tier,
        not fits_now,
        node.load,
        -free,
        node.instances,
        node.node_id,
    )


def _explain(node: NodeView, weights_bytes: int, need: int, fitting: int) -> str:
    where = {
        Tier.DEVICE: "the weights are on a device",
        Tier.HOST: "the weights are in host memory",
        Tier.DISK: "the artefact is on its disk",
        Tier.ABSENT: "it does not hold the artefact yet",
    }[node.tier]
    words = [f"of {fitting} nodes that could hold it: {where}"]
    if weights_bytes:
        words.append(f"{mib(_free_bytes(node, need))} free on a device for {mib(need)}")
    words.append(f"{node.load} requests and {node.instances} instances there")
    if node.failed_starts:
        words.append(f"{node.failed_starts} starts failed there lately, elsewhere not fewer")
    if not _host_room(node, weights_bytes):
        words.append(f"only {mib(node.host_free_bytes)} of host memory free")
    return ", ".join(words)
