"""The order of functions that is set, over requests that really ended."""

from __future__ import annotations

from rouse_contracts import node
from rouse_node_router.queues import Queues
from rouse_node_router.tickets import Outcome, Phase, Ticket
from rouse_node_router.versions import VersionQueue
from rouse_policy import golden, queueing
from rouse_testkit.clock import ManualClock


class Asked:
    """A call for a device that nobody ever answers."""

    def cancel(self) -> None:
        """Nothing is under way."""


async def test_who_misses_its_objective_goes_before_who_keeps_it() -> None:
    clock, lines, asked = ManualClock(), list[str](), list[str]()
    settings = queueing.Settings(max_acquiring=1, order=queueing.Order.RRC)
    queues = Queues(settings, clock, decided=lines.append)

    def ask(queue: VersionQueue, head: Ticket) -> Asked:
        asked.append(queue.version_id)
        return Asked()

    def enter(version: str, left_s: float = 60.0) -> Ticket:
        request = node.InferRequest(function=version, version_id=version)
        return queues.enter(request, b"", clock.monotonic() + left_s)

    # Before anybody asks for devices: one is answered in time, one expires.
    queues.leave(enter("keeps"), Outcome.COMPLETED)
    queues.leave(enter("misses"), Outcome.EXPIRED)
    first = [enter("keeps", 1.0), enter("misses", 50.0)]
    queues.asks_with(ask)
    queues.leave(enter("other"), Outcome.CANCELLED)
    assert asked == ["misses"]
    assert "required count 49" in lines[0]
    assert all(golden.replay(line).same for line in lines)
    for ticket in first:
        queues.leave(ticket, Outcome.CANCELLED)


async def test_devices_that_are_there_for_many_versions_are_given_one_after_the_other() -> None:
    clock = ManualClock()
    queues = Queues(queueing.Settings(max_acquiring=1), clock)
    queues.asks_with(lambda queue, head: Asked())

    def enter(version: str) -> Ticket:
        request = node.InferRequest(function=version, version_id=version)
        return queues.enter(request, b"", clock.monotonic() + 60.0)

    # More than there may be calls within calls.
    first, others = enter("first"), [enter(f"v{number}") for number in range(400)]

    def there(queue: VersionQueue, head: Ticket) -> None:
        (member,), _ = queues.granted(queue, None, clock.monotonic() + 60.0)
        assert member is head

    queues.asks_with(there)
    queues.leave(first, Outcome.CANCELLED)
    assert {ticket.phase for ticket in others} == {Phase.EXECUTING}
    assert queues.asking == 0
