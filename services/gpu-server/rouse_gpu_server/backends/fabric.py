"""The links that copies travel over, and how they share them: a topology's rates, kept to on a host device.

A link carries one chunk after the other, in the order in which copies come with theirs. A copy comes with its next
chunk when the last one is over, so copies on one link take turns: with chunks of one size, n copies get an n-th of the
rate each, and what one cannot use the others have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rouse_gpu_server.backends import CopyCancelled
from rouse_gpu_server.wiring import Wiring
from rouse_policy.scheduling import DISK, HOST

# A copy that woke this late goes on as if it had been in time, so that a link's rate is reached.
SLACK_S = 0.05


class Link:
    """A link of a rate in bytes a second: when it is free again, in seconds on the clock of its fabric."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free_at = 0.0


@dataclass
class Transfer:
    """One copy on its way over links at once, as fast as the slowest of them lets it.

    Args:
        links: what it passes; none: nothing holds it up.
        lock: of all links of the node.
        monotonic: the clock, seconds.
    """

    links: Sequence[Link]
    lock: threading.Lock
    monotonic: Callable[[], float]
    _ends_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._ends_at = self.monotonic()

    def take(self, size_bytes: int) -> float:
        """Takes the links for a chunk, behind what they carry already; how many seconds that is from now."""
        with self.lock:
            now = self.monotonic()
            at = self._ends_at if now - self._ends_at < SLACK_S else now
            ends_at = at
            for link in self.links:
                link.free_at = max(at, link.free_at) + size_bytes / link.rate
                ends_at = max(ends_at, link.free_at)
            self._ends_at = ends_at
            return ends_at - now

    def carry(self, size_bytes: int, cancelled: threading.Event) -> None:
        """Waits until the links have carried a chunk. Raises CopyCancelled."""
        if not self.links:
            return
        left_s = self.take(size_bytes)
        if left_s > 0 and cancelled.wait(left_s):
            raise CopyCancelled


class Fabric:
    """A node's links. Without a wiring every copy is as fast as the machine."""

    def __init__(self, wiring: Wiring, monotonic: Callable[[], float]) -> None:
        self._lock, self._monotonic = threading.Lock(), monotonic
        self._topology = wiring.topology
        self._direct = {pair: Link(rate) for pair, rate in wiring.topology.links.items()}
        self._ways: dict[str, list[Link]] = {}
        for group, rate in zip(wiring.topology.switches, wiring.switch_rates, strict=True):
            switch = [Link(rate)] if rate is not None else []
            for device in group:
                self._ways[device] = list(switch)
        for device, rate in wiring.device_rates.items():
            self._ways.setdefault(device, []).append(Link(rate))

    def beside(self, one: str, other: str) -> bool:
        """Whether copies from host memory to two devices share a link."""
        return one == other or one in self._topology.neighbours(other)

    def transfer(self, source: str, target: str) -> Transfer:
        """A copy to a device from host memory, or from a sibling: over their direct link, else by way of the host."""
        pair = (source, target) if source <= target else (target, source)
        if pair in self._direct:
            links = [self._direct[pair]]
        else:
            ends = (target,) if source in (HOST, DISK) else (target, source)
            # What is common to both ends is passed twice: up to the host, and down again.
            links = [link for end in ends for link in self._ways.get(end, ())]
        return Transfer(links, self._lock, self._monotonic)
