"""What the nodes count stands in the metrics by Triton's names."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY

from rouse_common.rpc import Channels
from rouse_contracts import node
from rouse_gateway import triton_metrics
from rouse_gateway.adapters.queues import Queues
from rouse_gateway.oip.statistics import Statistics
from rouse_gateway.state import Routes, index
from rouse_testkit.doubles_gateway import Control
from rouse_testkit.front import eventually


async def test_figures_are_read_off_the_nodes() -> None:
    control = Control()
    await control.start()
    try:
        double = await control.add_node("n0")
        control.add_function("f", nodes=["n0"])
        double.queues = [
            node.QueueSummary(
                function="f",
                version_id="f-1",
                statistics=node.InferenceStatistics(inference_count=12, execution_count=3),
            )
        ]
        routes, channels = Routes(), Channels(1 << 20)
        routes.apply(index(control.table()))
        publishing = asyncio.create_task(triton_metrics.publish(Statistics(routes, Queues(channels))))
        labels = {"model": "f", "version": "1"}
        await eventually(lambda: REGISTRY.get_sample_value("nv_inference_count", labels) == 12, "it is counted")
        assert REGISTRY.get_sample_value("nv_inference_exec_count", labels) == 3
        publishing.cancel()
        await asyncio.wait([publishing])
        assert REGISTRY.get_sample_value("nv_inference_count", labels) is None
        await channels.close()
    finally:
        await control.stop()
