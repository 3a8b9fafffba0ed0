"""What one client may cost the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass

from rouse_common.errors import ResourceExhausted

RETRY_AFTER_S = 1.0


@dataclass(frozen=True)
class Limits:
    """Bounds of the HTTP port.

    Args:
        body_bytes: largest body of a request, as sent and inflated.
        buffered_bytes: of all bodies that are at work at once, together.
        connections: open at once; further ones are answered 503 and closed.
        header_bytes, headers: of a request's first line and headers together, and their number.
        header_s: within which a request's headers must have arrived.
        body_s, bytes_per_s: within which its body must have: the former, and what it takes at the latter.
        idle_s: how long a connection is kept open without a request.
        stalled_s: how long a client may take nothing of an answer.
    """

    body_bytes: int
    buffered_bytes: int
    connections: int = 4096
    header_bytes: int = 64 << 10
    headers: int = 100
    header_s: float = 10.0
    body_s: float = 30.0
    bytes_per_s: int = 256 << 10
    idle_s: float = 75.0
    stalled_s: float = 30.0


class Budget:
    """Bytes of bodies that are held now, within a bound."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """Raises ResourceExhausted BODIES_FULL where they do not fit."""
        if self.used + size > self._limit:
            raise ResourceExhausted(
                "BODIES_FULL",
                f"requests of {self.used} bytes are at work already, {self._limit} are the most; try again soon",
                retry_after_s=RETRY_AFTER_S,
            )
        self.used += size

    def give(self, size: int) -> None:
        self.used -= size
