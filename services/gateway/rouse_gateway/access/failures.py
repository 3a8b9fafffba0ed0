"""Keys that were wrong, counted by who sent them, so that nobody floods the gateway with guesses."""

from __future__ import annotations

from collections import OrderedDict

from rouse_common.clock import Clock

# Of one peer.
AT_ONCE = 50.0
PER_SECOND = 2.0
# Peers that are kept; the one that was heard of longest ago goes first.
MAX_PEERS = 10_000


class Failures:
    """Token buckets by peer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, peer: str) -> float:
        """Counts a failure: 0.0, or the seconds that the peer should wait where it had too many."""
        now = self._clock.monotonic()
        left, at = self._peers.pop(peer, (AT_ONCE, now))
        left = min(AT_ONCE, left + (now - at) * PER_SECOND)
        wait_s = 0.0 if left >= 1 else (1 - left) / PER_SECOND
        self._peers[peer] = (max(0.0, left - 1) if left >= 1 else left, now)
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        return wait_s


def host_of(peer: str) -> str:
    """gRPC's peer, as ipv4:127.0.0.1:50314, without its port."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer
