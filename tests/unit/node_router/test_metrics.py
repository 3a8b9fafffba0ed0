"""The metrics of the queues: by function, over all its versions, read when scraped."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from rouse_contracts import node
from rouse_node_router.metrics import QueueCollector
from rouse_node_router.queues import Queues
from rouse_node_router.tickets import Outcome, Ticket
from rouse_node_router.versions import VersionQueue
from rouse_policy import queueing
from rouse_testkit.clock import ManualClock


class Ask:
    def __init__(self, queue: VersionQueue, head: Ticket) -> None:
        self.queue = queue

    def cancel(self) -> None:
        """Nothing is under way."""


async def test_versions_of_a_function_are_added_up(manual_clock: ManualClock) -> None:
    queues, asks = Queues(queueing.Settings(max_acquiring_per_version=1), manual_clock), []

    def ask(queue: VersionQueue, head: Ticket) -> Ask:
        asks.append(Ask(queue, head))
        return asks[-1]

    queues.asks_with(ask)
    registry = CollectorRegistry()
    registry.register(QueueCollector(queues.rows))
    deadline = manual_clock.monotonic() + 60

    def enter(function: str, version: str) -> Ticket:
        return queues.enter(node.InferRequest(function=function, version_id=version), b"", deadline)

    for version in ("v1", "v2"):
        enter("f", version)
        enter("f", version)
        queues.granted(asks[-1].queue, asks[-1], deadline)
    queues.leave(enter("g", "w"), Outcome.CANCELLED)
    assert registry.get_sample_value("rouse_queue_length", {"function": "f"}) == 2
    assert registry.get_sample_value("rouse_executing", {"function": "f"}) == 2
    assert registry.get_sample_value("rouse_queue_length", {"function": "g"}) == 0
    sample = {"function": "g", "outcome": "cancelled"}
    assert registry.get_sample_value("rouse_node_requests_total", sample) == 1
