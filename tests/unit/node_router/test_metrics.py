"""The metrics of the queues: by function, over all its versions, read when scraped."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from rouse_node_router.metrics import QueueCollector
from rouse_node_router.queues import Outcome, Queues
from rouse_policy import queueing
from rouse_testkit.clock import ManualClock


async def test_versions_of_a_function_are_added_up(manual_clock: ManualClock) -> None:
    queues = Queues(queueing.Settings(max_acquiring_per_version=1), manual_clock)
    registry = CollectorRegistry()
    registry.register(QueueCollector(queues.rows))
    deadline = manual_clock.monotonic() + 60
    for version in ("v1", "v2"):
        first = queues.enter("f", version, 10, deadline)
        queues.enter("f", version, 10, deadline)
        queues.granted(first)
    queues.leave(queues.enter("g", "w", 10, deadline), Outcome.CANCELLED)
    assert registry.get_sample_value("rouse_queue_length", {"function": "f"}) == 2
    assert registry.get_sample_value("rouse_executing", {"function": "f"}) == 2
    assert registry.get_sample_value("rouse_queue_length", {"function": "g"}) == 0
    sample = {"function": "g", "outcome": "cancelled"}
    assert registry.get_sample_value("rouse_node_requests_total", sample) == 1
