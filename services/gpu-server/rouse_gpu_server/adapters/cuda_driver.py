"""The CUDA devices of the machine in the driver's order, with their places on PCI. Asks the driver, starts nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from rouse_common.config import ConfigError
from rouse_common.errors import FailedPrecondition
from rouse_gpu_server.adapters import libraries, pci

LIBRARY = "libcuda.so.1"
MAX_DEVICES = 64
_NO_DEVICE = 100
_ADDRESS_BYTES = 32


def check(names: Sequence[str], library: str = LIBRARY) -> None:
    """Checks that the driver shows a device for each of these, which are in its order. Raises ConfigError."""
    if not names:
        return
    try:
        count = len(addresses(library))
    except FailedPrecondition as error:
        raise ConfigError(f"--device=cuda:{names[0]}: {error}") from error
    if count < len(names):
        raise ConfigError(f"--device=cuda:{names[count]}: {len(names)} are asked for, and the driver shows {count}")


def addresses(library: str = LIBRARY) -> tuple[str, ...]:
    """PCI addresses of the devices that the driver shows, CUDA_VISIBLE_DEVICES included; none where there is none.

    Raises FailedPrecondition DRIVER_MISSING or DRIVER_FAILED.
    """
    names = ("cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetPCIBusId")
    api = libraries.load(library, names)

    def call(name: str, *arguments: object) -> int:
        result = int(api[name](*arguments))
        if result not in (0, _NO_DEVICE):
            raise FailedPrecondition("DRIVER_FAILED", f"{name} of {library} gives error {result}", library=library)
        return result

    count = ctypes.c_int(0)
    if call("cuInit", ctypes.c_uint(0)) == _NO_DEVICE or call("cuDeviceGetCount", ctypes.byref(count)) == _NO_DEVICE:
        return ()
    if not 0 <= count.value <= MAX_DEVICES:
        raise FailedPrecondition(
            "DRIVER_FAILED", f"{library} counts {count.value} devices; want 0 to {MAX_DEVICES}", library=library
        )
    found = []
    for number in range(count.value):
        device, text = ctypes.c_int(0), ctypes.create_string_buffer(_ADDRESS_BYTES)
        call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        call("cuDeviceGetPCIBusId", text, ctypes.c_int(_ADDRESS_BYTES), device)
        try:
            found.append(pci.address(text.value.decode("ascii", "replace")))
        except ValueError as error:
            raise FailedPrecondition(
                "DRIVER_FAILED", f"{library}, device {number}: {error}", library=library
            ) from error
    return tuple(found)
