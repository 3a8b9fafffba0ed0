"""Shows how the machine's CUDA devices are connected: `python -m rouse_gpu_server.topology`.

With --toml it writes the file that --topology takes; rates of PCIe links are not told by the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rouse_common.errors import RouseError
from rouse_gpu_server import wiring
from rouse_gpu_server.adapters import cuda_driver, nvml, pci
from rouse_gpu_server.logic.machine import Machine, connect
from rouse_gpu_server.wiring import Wiring


def read(driver: str = cuda_driver.LIBRARY, management: str = nvml.LIBRARY, sysfs: Path = pci.SYSFS) -> Machine:
    """The machine as it is: devices are named gpu0, gpu1, ... in the driver's order.

    Raises FailedPrecondition DRIVER_MISSING, DRIVER_FAILED or PCI_DEVICE_UNKNOWN. Without NVML there are no direct
    links, and a note says so.
    """
    found = cuda_driver.addresses(driver)
    links: dict[str, Sequence[nvml.NvLink]] = {}
    notes = []
    try:
        with nvml.Nvml(management) as library:
            links = {address: library.links(address) for address in found}
    except RouseError as error:
        links = {}
        notes.append(f"no NVLinks: {error}")
    addresses = {f"gpu{number}": address for number, address in enumerate(found)}
    return connect(addresses, pci.switches(found, sysfs), links, notes)


def table(machine: Machine) -> str:
    """For people: each device with its switch and its direct links."""
    lines = [] if machine.addresses else ["no CUDA device"]
    switch_of = {name: number for number, group in enumerate(machine.topology.switches) for name in group}
    for name, address in machine.addresses.items():
        switch = f"switch {switch_of[name]}" if name in switch_of else "no switch"
        to = [
            f"{other} {machine.topology.bandwidth(name, other) / 1e9:.4g} GB/s"
            for other in machine.addresses
            if other != name and machine.topology.bandwidth(name, other)
        ]
        lines.append(f"{name}  {address}  {switch}  {', '.join(to) or 'no direct link'}")
    return "\n".join([*lines, *(f"note: {note}" for note in machine.notes)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rouse_gpu_server.topology", description=__doc__)
    parser.add_argument("--toml", action="store_true", help="as the file that --topology takes")
    parser.add_argument("--driver", default=cuda_driver.LIBRARY, help="CUDA's driver (%(default)s)")
    parser.add_argument("--nvml", default=nvml.LIBRARY, help="the management library (%(default)s)")
    parser.add_argument("--sysfs", type=Path, default=pci.SYSFS, help="(%(default)s)")
    options = parser.parse_args(arguments)
    try:
        machine = read(options.driver, options.nvml, options.sysfs)
    except RouseError as error:
        print(f"{error.reason}: {error}", file=sys.stderr)
        return 1
    if options.toml:
        print("".join(f"# {note}\n" for note in machine.notes), end="")
        print(wiring.write(Wiring(machine.topology, (None,) * len(machine.topology.switches))), end="")
    else:
        print(table(machine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
