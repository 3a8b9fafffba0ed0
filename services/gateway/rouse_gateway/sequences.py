"""Which node has which sequence: what a node knew of one is gone with it, and its requests are to hear that.

Any gateway finds the node of a sequence by its name (policy `routing`) as long as the nodes stay the same. The
gateway that saw it start remembers its node besides: new nodes do not draw it away, and where its node is gone it
is lost, instead of unknown to some other node.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, RouseError
from rouse_contracts.functions import RequestOptions

MAX_SEQUENCES = 100_000
# As long as node-router remembers a sequence that has no requests (its sequence_idle_s).
IDLE_S = 60.0


@dataclass(slots=True)
class _Home:
    """A sequence's node; `started` once its first request was answered there."""

    node_id: str
    used_at: float
    started: bool = False


@dataclass(frozen=True, slots=True)
class Bond:
    """A request's place in its sequence.

    Args:
        home: the node that it has to go to; empty for the first request, and where this gateway has not seen one.
    """

    function: str
    key: tuple[str, str, str]
    start: bool
    end: bool
    home: str = ""


class Sequences:
    """The sequences that this gateway saw start, bounded; those longest without a request are forgotten first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._homes: OrderedDict[tuple[str, str, str], _Home] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def bond(self, function: str, version_id: str, tenant: str, options: RequestOptions | None) -> Bond | None:
        """A request's place in its sequence; None where it belongs to none."""
        if options is None or not options.sequence.id:
            return None
        asked, now = options.sequence, self._clock.monotonic()
        self._forget_idle(now)
        key = (version_id, tenant, asked.id)
        known = None if asked.start else self._homes.get(key)
        if known is not None:
            known.used_at = now
            self._homes.move_to_end(key)
        return Bond(function, key, asked.start, asked.end, known.node_id if known is not None else "")

    def sent(self, bond: Bond, node_id: str) -> None:
        """The request is about to be sent to a node, which the sequence stays with where this is the first one."""
        if not bond.start:
            return
        while len(self._homes) >= MAX_SEQUENCES:
            self._homes.popitem(last=False)
        self._homes[bond.key] = _Home(node_id, self._clock.monotonic())
        self._homes.move_to_end(bond.key)

    def answered(self, bond: Bond) -> None:
        """The request was executed."""
        known = self._homes.get(bond.key)
        if known is None:
            return
        known.started, known.used_at = True, self._clock.monotonic()
        if bond.end:
            del self._homes[bond.key]

    def explained(self, bond: Bond, error: RouseError) -> RouseError:
        """What a node answered, in view of what is known of the sequence: one that was under way there, and that
        the node does not know, is lost."""
        known = self._homes.get(bond.key)
        if error.reason == "SEQUENCE_NOT_STARTED" and known is not None and known.started:
            return lost(bond, f"node {known.node_id} knows nothing of it any more")
        return error

    def _forget_idle(self, now: float) -> None:
        while self._homes:
            key, home = next(iter(self._homes.items()))
            if home.used_at > now - IDLE_S:
                return
            del self._homes[key]


def lost(bond: Bond, why: str) -> FailedPrecondition:
    """What requests of a sequence hear whose node is gone, until one starts it again."""
    sequence = bond.key[2]
    return FailedPrecondition(
        "SEQUENCE_LOST",
        f"sequence '{sequence}' of function '{bond.function}' is lost: {why}; start the sequence again",
        function=bond.function,
        sequence=sequence,
    )
