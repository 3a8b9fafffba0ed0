"""Where devices sit on PCI, from sysfs: which of them share a link to host memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rouse_common.errors import FailedPrecondition

SYSFS = Path("/sys")
# As sysfs names a function on PCI; drivers write the domain with up to eight digits, and in capitals.
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


def address(text: str) -> str:
    """A PCI address as sysfs writes it, "0000:3b:00.0". Raises ValueError."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text[:40]}' is no PCI address; want one as 0000:3b:00.0")
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def switches(devices: Sequence[str], sysfs: Path = SYSFS) -> tuple[tuple[str, ...], ...]:
    """Groups of two devices or more, by their addresses, that are behind one switch: below one port of the root.

    Raises FailedPrecondition PCI_DEVICE_UNKNOWN where sysfs does not have a device.
    """
    below: dict[Path, list[str]] = {}
    for device in devices:
        port = _root_port(device, sysfs)
        if port is not None:
            below.setdefault(port, []).append(device)
    return tuple(tuple(group) for group in below.values() if len(group) > 1)


def _root_port(device: str, sysfs: Path) -> Path | None:
    """The port of the root that a device is below; None where it is on the root's own bus, as in a virtual machine."""
    link = sysfs / "bus" / "pci" / "devices" / device
    try:
        path = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise FailedPrecondition(
            "PCI_DEVICE_UNKNOWN",
            f"sysfs has no PCI device {device} ({error}); in a container, mount the machine's /sys",
            device=device,
        ) from error
    # The bridges on the way to the root, the nearest first.
    chain = [path]
    while _ADDRESS.fullmatch(chain[-1].parent.name):
        chain.append(chain[-1].parent)
    if path.name != device:
        raise FailedPrecondition(
            "PCI_DEVICE_UNKNOWN", f"sysfs has {path.name} in the place of PCI device {device}", device=device
        )
    return chain[-1] if len(chain) > 1 else None
