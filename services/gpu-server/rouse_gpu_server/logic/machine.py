"""How a machine's devices are connected, from what its parts say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from rouse_gpu_server.adapters.nvml import End, NvLink
from rouse_policy.topology import Topology


@dataclass(frozen=True)
class Machine:
    """Args:
    addresses: of the devices on PCI, by their names.
    topology: switches and direct links.
    notes: what could not be read, and what was taken for what.
    """

    addresses: Mapping[str, str]
    topology: Topology
    notes: tuple[str, ...] = ()


def connect(
    addresses: Mapping[str, str],
    switches: Sequence[Sequence[str]],
    links: Mapping[str, Sequence[NvLink]],
    notes: Sequence[str] = (),
) -> Machine:
    """Args:
    addresses: of the devices on PCI, by their names.
    switches: groups of addresses behind one PCIe switch.
    links: NVLinks by the address of the device that has them.
    """
    names = {address: name for name, address in addresses.items()}
    told = list(notes)
    rates: dict[tuple[str, str], float] = {}
    for one, other in combinations(sorted(addresses), 2):
        ends = (addresses[one], addresses[other])
        direct = min(_direct(links.get(a, ()), b) for a, b in (ends, ends[::-1]))
        # Each device may use all of its links to the switches at once, and all switches are one fabric.
        through = min(_through_switches(links.get(address, ())) for address in ends)
        if direct + through > 0:
            rates[one, other] = direct + through
    if any(link.end is End.SWITCH for each in links.values() for link in each):
        told.append("NVSwitches are taken for one fabric that connects all devices that have links to one")
    for address, each in links.items():
        silent = sum(link.bytes_s is None for link in each)
        if silent:
            told.append(f"{names[address]}: the driver does not tell the rate of {silent} NVLinks; they are left out")
    groups = tuple(tuple(names[address] for address in group) for group in switches)
    topology = Topology(groups, rates)
    topology.check(addresses)
    return Machine(dict(addresses), topology, tuple(told))


def _direct(links: Sequence[NvLink], address: str) -> float:
    return sum(link.bytes_s or 0.0 for link in links if link.address == address and link.end is not End.SWITCH)


def _through_switches(links: Sequence[NvLink]) -> float:
    return sum(link.bytes_s or 0.0 for link in links if link.end is End.SWITCH)
