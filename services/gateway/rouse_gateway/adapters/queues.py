"""Asks node-routers for their queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rouse_common.rpc import Channels, call
from rouse_contracts import node


class Queues:
    """The queues of nodes, as their routers describe them."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def describe(self, addresses: Iterable[str], timeout_s: float) -> list[node.QueueSummary]:
        """Every queue of the routers at `addresses`, asked at once. Raises what the first failing one answered:
        figures that lack a node's part would be wrong."""
        asked = (self._one(address, timeout_s) for address in addresses)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[node.QueueSummary] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found += answer
        return found

    async def _one(self, address: str, timeout_s: float) -> list[node.QueueSummary]:
        stub = node.NodeServiceStub(self._channels.get(address))
        answer = await call(stub.DescribeQueues, node.DescribeQueuesRequest(), timeout_s=timeout_s)
        return list(answer.queues)
