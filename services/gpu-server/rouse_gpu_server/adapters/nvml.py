"""NVLinks of CUDA devices and their rates, from NVIDIA's management library (NVML).

Layouts and numbers are those of nvml.h as documented at docs.nvidia.com/deploy/nvml-api: nvmlPciInfo_t of the
third version, which nvmlDeviceGetNvLinkRemotePciInfo_v2 fills, and nvmlFieldValue_t.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import Enum

from rouse_common.errors import FailedPrecondition
from rouse_gpu_server.adapters import libraries, pci

LIBRARY = "libnvidia-ml.so.1"
# More than any device has; a bound for what the library says.
MAX_LINKS = 64
_FIELD_COUNT, _FIELD_COMMON_MBPS, _FIELD_MBPS, _FIELD_STATE = 91, 90, 164, 165
_CAN_COPY = 0
_ACTIVE = 1
_UNSIGNED = 1
_UNSIGNED_LONG = 2
_UNSIGNED_LONG_LONG = 3


class End(Enum):
    """What is at the other end of a link."""

    DEVICE = 0
    SWITCH = 2
    OTHER = 255


@dataclass(frozen=True)
class NvLink:
    """An active link over which a device can copy.

    Args:
        end: what is at its other end.
        address: where that is on PCI; empty where it is not told.
        bytes_s: its rate one way, as it is on the wire; None where the driver does not tell.
    """

    end: End
    address: str
    bytes_s: float | None


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Value(ctypes.Union):
    _fields_ = (
        ("double", ctypes.c_double),
        ("unsigned", ctypes.c_uint),
        ("unsigned_long", ctypes.c_ulong),
        ("unsigned_long_long", ctypes.c_ulonglong),
    )


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("field_id", ctypes.c_uint),
        ("scope_id", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong),
        ("value_type", ctypes.c_uint),
        ("result", ctypes.c_uint),
        ("value", _Value),
    )


assert ctypes.sizeof(_PciInfo) == 68
assert ctypes.sizeof(_FieldValue) == 40
_FUNCTIONS = (
    "nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkCapability", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
)  # fmt: skip


class Nvml:
    """The library, while it is open as a context. Raises FailedPrecondition DRIVER_MISSING or DRIVER_FAILED."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library, self._api = library, libraries.load(library, _FUNCTIONS)

    def __enter__(self) -> Nvml:
        self._call("nvmlInit_v2")
        return self

    def __exit__(self, *_: object) -> None:
        self._call("nvmlShutdown")

    def links(self, address: str) -> tuple[NvLink, ...]:
        """The active links of the device at a PCI address; none where it has no NVLink."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByPciBusId_v2", address.encode(), ctypes.byref(handle))
        count = self._field(handle, _FIELD_COUNT) or 0
        if count > MAX_LINKS:
            raise self._failed(f"device {address} has {count} links; want at most {MAX_LINKS}")
        common = self._field(handle, _FIELD_COMMON_MBPS)
        return tuple(
            self._link(handle, link, common)
            for link in range(count)
            if self._asked("nvmlDeviceGetNvLinkCapability", handle, link, ctypes.c_uint(_CAN_COPY))
            and self._state(handle, link) == _ACTIVE
        )

    def _link(self, handle: ctypes.c_void_p, link: int, common: int | None) -> NvLink:
        kind = self._asked("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        end = End(kind) if kind in (End.DEVICE.value, End.SWITCH.value) else End.OTHER
        info, where = _PciInfo(), ""
        if not self._api["nvmlDeviceGetNvLinkRemotePciInfo_v2"](handle, ctypes.c_uint(link), ctypes.byref(info)):
            try:
                where = pci.address(info.bus_id.decode("ascii", "replace"))
            except ValueError as error:
                # In a virtual machine a switch has no address.
                if end is End.DEVICE:
                    raise self._failed(f"link {link}: {error}") from error
        speed = self._field(handle, _FIELD_MBPS, link) or common
        return NvLink(end, where, speed * 1e6 if speed else None)

    def _state(self, handle: ctypes.c_void_p, link: int) -> int | None:
        """By its field where the device has that, as the newest do."""
        state = self._field(handle, _FIELD_STATE, link)
        return self._asked("nvmlDeviceGetNvLinkState", handle, link) if state is None else state

    def _asked(self, name: str, handle: ctypes.c_void_p, link: int, *more: object) -> int | None:
        """What a function says of a link; None where it does not know."""
        value = ctypes.c_uint(0)
        result = self._api[name](handle, ctypes.c_uint(link), *more, ctypes.byref(value))
        return None if result else value.value

    def _field(self, handle: ctypes.c_void_p, field: int, scope: int = 0) -> int | None:
        """A field that is a whole number; None where the device does not have it."""
        value = _FieldValue(field_id=field, scope_id=scope)
        if self._api["nvmlDeviceGetFieldValues"](handle, ctypes.c_int(1), ctypes.byref(value)) or value.result:
            return None
        if value.value_type == _UNSIGNED:
            return int(value.value.unsigned)
        if value.value_type in (_UNSIGNED_LONG, _UNSIGNED_LONG_LONG):
            return int(value.value.unsigned_long_long)
        return None

    def _call(self, name: str, *arguments: object) -> None:
        result = int(self._api[name](*arguments))
        if result:
            raise self._failed(f"{name} gives error {result}")

    def _failed(self, what: str) -> FailedPrecondition:
        return FailedPrecondition("DRIVER_FAILED", f"{self._library}: {what}", library=self._library)
