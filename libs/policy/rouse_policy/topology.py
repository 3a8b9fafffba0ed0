"""Which links a node's devices share (Torpor, Figure 5): switches to host memory, and direct links between devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Topology:
    """How a node's devices are connected.

    Args:
        switches: devices that share one switch to host memory, a group a switch. A device in no group shares with none.
        links: bytes a second between two devices directly, by their names in order; a pair that is missing has no link.
    """

    switches: tuple[tuple[str, ...], ...] = ()
    links: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def neighbours(self, device: str) -> tuple[str, ...]:
        """The devices that share the device's switch."""
        for group in self.switches:
            if device in group:
                return tuple(other for other in group if other != device)
        return ()

    def bandwidth(self, one: str, other: str) -> float:
        """Bytes a second from one device to another over a direct link, 0 where there is none."""
        return self.links.get((one, other) if one <= other else (other, one), 0.0)

    def check(self, devices: Iterable[str]) -> None:
        """Raises ValueError naming what does not fit the node's devices."""
        known = set(devices)
        grouped = [device for group in self.switches for device in group]
        for device in [*grouped, *(name for pair in self.links for name in pair)]:
            if device not in known:
                raise ValueError(f"topology: device '{device}' is not among {', '.join(sorted(known))}")
        for device in grouped:
            if grouped.count(device) > 1:
                raise ValueError(f"topology: device '{device}' is behind {grouped.count(device)} switches; want one")
        for (one, other), rate in self.links.items():
            if one >= other:
                raise ValueError(f"topology: link {one}-{other}: want two devices, in the order of their names")
            if not rate > 0:
                raise ValueError(f"topology: link {one}-{other}: {rate} B/s; want more than 0")
