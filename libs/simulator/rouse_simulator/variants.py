"""The systems that are compared, as settings of the policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from rouse_policy import eviction, keep_alive, queueing, rrc
from rouse_policy.interference import Mode


class Binding(Enum):
    """When a function gets a device: for each request, when it is deployed, or for as long as it is kept alive."""

    LATE = "LATE"
    EARLY = "EARLY"
    KEEP_ALIVE = "KEEP_ALIVE"


@dataclass(frozen=True)
class Variant:
    """One system.

    Args:
        name: as in measures.
        binding: when a function gets a device.
        order: how waiting functions are ordered.
        mode: how a device is chosen among idle ones (late binding).
        evict: in which order models leave (late binding).
        remoting: requests run in an executor that all functions share; else natively, with a runtime each.
        late_last: requests that are late already go after others.
        driver_blocks: memory is allocated by the driver at each swap (Torpor-Block).
        objective: of required request counts.
        keep: lifespans, where they are kept alive.
    """

    name: str
    binding: Binding = Binding.LATE
    order: queueing.Order = queueing.Order.RRC
    mode: Mode = Mode.INTERFERENCE
    evict: eviction.Order = eviction.Order.POOL
    remoting: bool = True
    late_last: bool = False
    driver_blocks: bool = False
    objective: rrc.Settings = field(default_factory=rrc.Settings)
    keep: keep_alive.Settings = field(default_factory=keep_alive.Settings)


FULL = Variant("full")
FIFO = Variant("fifo", order=queueing.Order.FIFO)
RANDOM = Variant("random", mode=Mode.RANDOM)
LRU = Variant("lru", evict=eviction.Order.LRU)
BLOCK = Variant("block", driver_blocks=True)
# Beyond the paper.
LATE_LAST = Variant("late_last", late_last=True)
# The baselines of the paper's clusters (7.4).
SIMPLE_SWAP = Variant("simple_swap", order=queueing.Order.FIFO, mode=Mode.RANDOM, evict=eviction.Order.LRU)
NON_SWAP = Variant("non_swap", Binding.EARLY, queueing.Order.FIFO)
NATIVE = Variant("native", Binding.EARLY, queueing.Order.FIFO, remoting=False)
KEEP_ALIVE = Variant("keep_alive", Binding.KEEP_ALIVE, queueing.Order.FIFO, remoting=False)
VARIANTS = {
    v.name: v for v in (FULL, FIFO, RANDOM, LRU, BLOCK, LATE_LAST, SIMPLE_SWAP, NON_SWAP, NATIVE, KEEP_ALIVE)
}  # fmt: skip
