"""The memory of one device: mapped + reserved + free = capacity, checked at every change."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

PAGE_BYTES = mmap.PAGESIZE
# Pieces in which native executors take memory (device/device.h).
PIECE_BYTES = 2 << 20


class LedgerError(RuntimeError):
    """A change that would not add up: a fault in our own code."""


def round_up(size_bytes: int, to: int = PAGE_BYTES) -> int:
    """A size as whole pages, or other pieces."""
    return -(-size_bytes // to) * to


@dataclass
class Ledger:
    """Bytes of a device. Every change takes whole pages.

    Args:
        device: its name, for messages.
        capacity_bytes: all there is.
        mapped_bytes: memory of models.
        reserved_bytes: promised: to loads that begin, and as working memory to what executes.
    """

    device: str
    capacity_bytes: int
    mapped_bytes: int = 0
    reserved_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.mapped_bytes - self.reserved_bytes

    def reserve(self, size_bytes: int) -> None:
        """Free memory becomes reserved."""
        self._change("reserve", size_bytes, 0, size_bytes)

    def release(self, size_bytes: int) -> None:
        """Reserved memory becomes free."""
        self._change("release", size_bytes, 0, -size_bytes)

    def map_reserved(self, size_bytes: int) -> None:
        """Reserved memory becomes mapped."""
        self._change("map", size_bytes, size_bytes, -size_bytes)

    def unmap(self, size_bytes: int) -> None:
        """Mapped memory becomes free."""
        self._change("unmap", size_bytes, -size_bytes, 0)

    def _change(self, what: str, size_bytes: int, mapped: int, reserved: int) -> None:
        mapped, reserved = self.mapped_bytes + mapped, self.reserved_bytes + reserved
        if size_bytes < 0 or size_bytes % PAGE_BYTES:
            raise LedgerError(f"{self.device}: {what} of {size_bytes} B, which are no whole pages")
        if mapped < 0 or reserved < 0 or mapped + reserved > self.capacity_bytes:
            raise LedgerError(
                f"{self.device}: {what} of {size_bytes} B does not add up: mapped {self.mapped_bytes}, "
                f"reserved {self.reserved_bytes}, capacity {self.capacity_bytes}"
            )
        self.mapped_bytes, self.reserved_bytes = mapped, reserved
