"""node-router put together."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from prometheus_client import REGISTRY

from rouse_cache import Windows
from rouse_common.clock import SystemClock
from rouse_common.decision_log import DecisionLog
from rouse_common.errors import RouseError
from rouse_common.link import Links, LinkServer
from rouse_common.rpc import Channels, RpcServer
from rouse_common.tasks import periodically
from rouse_contracts import node as contract
from rouse_node_router import metrics
from rouse_node_router.adapters.devices import Devices
from rouse_node_router.adapters.executors import Executors
from rouse_node_router.adapters.usage import Usage
from rouse_node_router.carriers import Carriers
from rouse_node_router.config import NodeRouterConfig
from rouse_node_router.leases import Leases
from rouse_node_router.metrics import QueueCollector
from rouse_node_router.queues import Queues
from rouse_node_router.requests import Requests
from rouse_node_router.sequences import Sequences
from rouse_node_router.service import InferLink, NodeServicer

LOG = logging.getLogger(__name__)

SWEEP_S = 15.0
CLAIM_TIMEOUT_S = 2.0
CLAIM_PAUSE_S = 0.2
LAST_WORDS_S = 2.0
# What a message to an executor has beside its tensors, at most.
MESSAGE_HEAD_BYTES = 256 << 10


class NodeRouter:
    """The service: its parts, and their order of starting and stopping."""

    def __init__(self, config: NodeRouterConfig) -> None:
        self._config = config
        self._max_bytes = config.max_message_mib << 20

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        config, clock = self._config, SystemClock()
        log = DecisionLog(Path(config.decision_log)) if config.decision_log else None
        tls = config.tls
        channels = Channels(self._max_bytes, tls)
        links = Links(self._max_bytes, tls.client_context() if tls is not None else None)
        windows = Windows.connect(config.redis, clock)
        queues = Queues(
            config.queueing,
            clock,
            self._max_bytes - MESSAGE_HEAD_BYTES,
            lambda why: metrics.SHED.labels(why).inc(),
            log.write if log is not None else None,
        )
        sequences = Sequences(config.sequence_idle_s, clock)
        collector = QueueCollector(queues.rows)
        REGISTRY.register(collector)
        try:
            async with asyncio.TaskGroup() as tasks:
                usage = Usage(channels, config.cluster_manager, config.usage_buffer)
                devices = Devices(
                    channels, links, config.gpu_server, config.gpu_server_link, config.node_id, uuid.uuid4().hex, tasks
                )
                executors = Executors(links)
                leases = Leases(devices, tasks, clock, config.lease_reuse_ms / 1000)
                carriers = Carriers(config.node_id, queues, leases, executors, tasks, clock)
                requests = Requests(config.node_id, queues, carriers, executors, usage, windows, clock, sequences)
                infer = InferLink(config.node_id, requests)

                async def sweep() -> None:
                    sequences.forget_idle()
                    queues.forget_idle(config.idle_state_s)

                background = [
                    tasks.create_task(windows.run()),
                    tasks.create_task(usage.run()),
                    tasks.create_task(periodically("dropping unused state", SWEEP_S, sweep)),
                ]
                server = RpcServer(config.listen, max_message_bytes=self._max_bytes, tls=tls)
                server.add(contract.add_NodeServiceServicer_to_server, NodeServicer(queues), contract.DESCRIPTOR)
                context = tls.server_context() if tls is not None else None
                link = LinkServer(config.link_listen, max_message_bytes=self._max_bytes, tls=context)
                infer.add_to(link)
                await link.start()
                await server.start()
                if await self._claim(devices, stopping):
                    infer.open()
                    await server.set_serving(True)
                    await ready(server.address)
                    await stopping.wait()
                await server.set_serving(False)
                await link.stop(config.drain_s)
                await server.stop(config.drain_s)
                await leases.released(LAST_WORDS_S)
                for task in background:
                    task.cancel()
            await self._last_words(usage, windows)
        finally:
            if log is not None:
                log.close()
            REGISTRY.unregister(collector)
            await links.close()
            await channels.close()
            await windows.close()

    async def _claim(self, devices: Devices, stopping: asyncio.Event) -> bool:
        """Frees what earlier incarnations left behind, once gpu-server is there; False where we stop before."""
        waiting = False
        while not stopping.is_set():
            try:
                released = await devices.release_all(CLAIM_TIMEOUT_S)
                LOG.info("gpu-server is there address=%s leases_freed=%d", self._config.gpu_server, released)
                return True
            except RouseError as error:
                if not waiting:
                    LOG.info("waiting for gpu-server address=%s error=%s", self._config.gpu_server, error)
                waiting = True
            try:
                async with asyncio.timeout(CLAIM_PAUSE_S):
                    await stopping.wait()
            except TimeoutError:
                continue
        return False

    async def _last_words(self, usage: Usage, windows: Windows) -> None:
        """Writes what is only in memory, as far as the neighbours are still there."""
        for what, flush in (("usage records", usage.flush), ("activity", windows.flush)):
            try:
                async with asyncio.timeout(LAST_WORDS_S):
                    await flush()
            except (RouseError, TimeoutError) as error:
                LOG.warning("%s are lost at the stop: %s", what, error)
