"""Puts the coordinator together."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from rouse_common.clock import SystemClock
from rouse_common.rpc import Channels, RpcServer
from rouse_contracts import coordination
from rouse_coordinator.adapters.neighbours import ClusterManager, Executors, GpuServer, NodeRouter
from rouse_coordinator.adapters.process import Launcher, template_environment
from rouse_coordinator.adapters.templates import Templates
from rouse_coordinator.ahead import Ahead
from rouse_coordinator.config import CoordinatorConfig
from rouse_coordinator.folder import RuntimeFolder
from rouse_coordinator.instances import Instances
from rouse_coordinator.life import Living
from rouse_coordinator.node import Addresses, NodeAgent
from rouse_coordinator.registry import Registry, executors_of
from rouse_coordinator.reports import Reports
from rouse_coordinator.service import CoordinationServicer, InstanceServicer
from rouse_coordinator.sync import ExecutorSync
from rouse_coordinator.table import RegistrationTable

LOG = logging.getLogger(__name__)

# At the end neighbours may be gone already; what cannot be delivered then they learn from the missing heartbeats.
FLUSH_S = 1.0
STOP_SERVER_S = 1.0


class _Stopped(Exception):
    """Ends the background loops."""


class CoordinatorApp:
    """CoordinationService over TCP, InstanceService over a Unix socket, and the loops beside them."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        folder = RuntimeFolder(self._config.runtime_dir)
        folder.open()
        channels = Channels(self._config.max_message_mib << 20, self._config.tls)
        templates = Templates(template_environment(os.environ), SystemClock())
        try:
            async with asyncio.TaskGroup() as group:
                await self._run(group, folder, channels, templates, ready, stopping)
                raise _Stopped
        except* _Stopped:
            LOG.debug("loops ended")
        finally:
            await templates.close()
            await channels.close()
            folder.close()

    async def _run(
        self,
        group: asyncio.TaskGroup,
        folder: RuntimeFolder,
        channels: Channels,
        templates: Templates,
        ready: Callable[[str], Awaitable[None]],
        stopping: asyncio.Event,
    ) -> None:
        config, clock = self._config, SystemClock()
        table = RegistrationTable(config.max_instances, clock)
        gpu_server = GpuServer(channels, config.gpu_server)
        cluster_manager = ClusterManager(channels, config.cluster_manager)
        sync = ExecutorSync(lambda: executors_of(table), gpu_server.sync, config.sync_s)
        reports = Reports(cluster_manager.report, group)
        registry = Registry(table, sync, reports, group)
        launcher = Launcher(config, templates if config.templates else None)
        living = Living(config, registry, gpu_server, Executors(channels), launcher, folder.address, clock)
        instances = Instances(config.node_id, table, living, reports, group, clock)
        ahead = Ahead(gpu_server.stage, config.stage_timeout_s, group)
        server = RpcServer(config.listen, max_message_bytes=config.max_message_mib << 20, tls=config.tls)
        server.add(
            coordination.add_CoordinationServiceServicer_to_server,
            CoordinationServicer(instances, table, ahead),
            coordination.DESCRIPTOR,
        )
        local = RpcServer(folder.address, max_message_bytes=config.max_message_mib << 20)
        local.add(
            coordination.add_InstanceServiceServicer_to_server, InstanceServicer(instances), coordination.DESCRIPTOR
        )
        await local.start()
        folder.let_instances_in()
        await local.set_serving(True)
        await server.start()
        addresses = Addresses(
            config.node_router,
            config.node_router_link,
            config.advertise_gpu_server or config.gpu_server,
            config.advertise or server.address,
        )
        registered = asyncio.Event()
        agent = NodeAgent(
            config.node_id, addresses, gpu_server, NodeRouter(channels, config.node_router), cluster_manager,
            instances, group, clock, registered.set, config.stop_grace_s,
        )  # fmt: skip
        group.create_task(sync.run(), name="sync")
        beating = group.create_task(agent.run(), name="heartbeats")
        group.create_task(_serve_once(registered, server), name="health")
        await ready(server.address)
        await stopping.wait()
        await server.set_serving(False)
        await instances.stop_all(config.drain_s, "the coordinator stops")
        beating.cancel()
        ahead.stop()
        if not await reports.delivered(FLUSH_S):
            LOG.warning("not reported to cluster-manager instances=%s", ",".join(sorted(reports.undelivered)))
        await server.stop(STOP_SERVER_S)
        await local.stop(STOP_SERVER_S)


async def _serve_once(registered: asyncio.Event, server: RpcServer) -> None:
    await registered.wait()
    await server.set_serving(True)
