"""The gateway put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version

from rouse_bus import Bus, subjects
from rouse_cache import Windows
from rouse_common import sampling
from rouse_common.clock import SystemClock
from rouse_common.errors import RouseError
from rouse_common.link import Links
from rouse_common.rpc import Channels, RpcServer
from rouse_contracts import functions, inference
from rouse_gateway import triton_metrics
from rouse_gateway.access.guard import Access
from rouse_gateway.access.http import HttpAccess
from rouse_gateway.access.view import VisibleRoutes
from rouse_gateway.adapters.control import ClusterManager, Repository, Scaler
from rouse_gateway.adapters.logs import Logs
from rouse_gateway.adapters.nodes import Nodes
from rouse_gateway.adapters.queues import Queues
from rouse_gateway.adapters.traces import Traces
from rouse_gateway.config import GatewayConfig
from rouse_gateway.dispatch import Dispatcher
from rouse_gateway.entrance import Entrance
from rouse_gateway.feed import RoutingFeed
from rouse_gateway.http.limits import Limits
from rouse_gateway.http.router import Router
from rouse_gateway.http.routes import make_app, make_router
from rouse_gateway.http.server import HttpServer
from rouse_gateway.oip.desk import Desk
from rouse_gateway.oip.inferences import Inferences
from rouse_gateway.oip.regions import Regions
from rouse_gateway.oip.repository import ModelRepository
from rouse_gateway.oip.settings import LogSettings, TraceSettings
from rouse_gateway.oip.statistics import Statistics
from rouse_gateway.service import functions as function_service
from rouse_gateway.service import inference as inference_service
from rouse_gateway.service.functions import Neighbours
from rouse_gateway.service.inference import InferenceService
from rouse_gateway.service.owned import OwnedFunctions
from rouse_gateway.state import Routes
from rouse_gateway.wakes import Wakes
from rouse_policy import admission

LOG = logging.getLogger(__name__)

# The newest table says everything; older ones that wait may go.
MAX_PENDING_TABLES = 16


class GatewayApp:
    """Owns what lives as long as the process: connections, the routing table, the server."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._max_message_bytes = config.max_message_mib << 20

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Serves until `stopping` is set, then drains. See rouse_common.lifecycle.App."""
        tls = self._config.tls
        channels = Channels(self._max_message_bytes, tls)
        links = Links(self._max_message_bytes, tls.client_context() if tls is not None else None)
        bus = Bus.open(self._config.nats, "gateway")
        windows = Windows.connect(self._config.redis)
        regions = Regions(self._config.max_shared_memory_regions, self._max_message_bytes)
        logs = LogSettings(logging.getLogger())
        entrance = Entrance(self._config, channels, SystemClock())
        try:
            async with asyncio.TaskGroup() as tasks:
                background = await self._serve(
                    tasks, channels, links, bus, windows, regions, logs, entrance, ready, stopping
                )
                entrance.stop()
                for task in background:
                    task.cancel()
        finally:
            await entrance.close()
            logs.close()
            regions.close()
            await _flush(windows)
            await windows.close()
            await bus.close()
            await links.close()
            await channels.close()

    async def _serve(
        self,
        tasks: asyncio.TaskGroup,
        channels: Channels,
        links: Links,
        bus: Bus,
        windows: Windows,
        regions: Regions,
        logs: LogSettings,
        entrance: Entrance,
        ready: Callable[[str], Awaitable[None]],
        stopping: asyncio.Event,
    ) -> list[asyncio.Task[None]]:
        """Starts everything, serves, and stops serving; returns the tasks that are still at work."""
        config, clock, routes = self._config, SystemClock(), Routes()
        cluster = ClusterManager(channels, config.cluster_manager)
        nodes = Nodes(links)
        feed = RoutingFeed(routes, cluster.routing_table, lambda: nodes.prune(set(routes.table.addresses.values())))
        scaler = Scaler(channels, config.scaler)
        wakes = Wakes(tasks, routes, feed.refresh, scaler, clock)
        dispatcher = Dispatcher(
            routes, nodes, wakes, clock, windows.count_arrival, admission.Settings(max_held=config.max_held)
        )
        front, seen = entrance.front(routes, dispatcher, tasks), VisibleRoutes(routes)
        desk = Desk(
            Inferences(seen, front, regions, config.default_timeout_s),
            Statistics(seen, Queues(channels)),
            ModelRepository(seen, feed, front, scaler, clock),
            regions,
            TraceSettings(sampling.REQUESTS),
            logs,
        )
        sampling.REQUESTS.limit(config.traces_per_s)
        mesh_version = version("rouse-gateway")
        rest = self._rest(make_router(seen, desk, mesh_version), entrance.guard)
        neighbours = Neighbours(
            cluster,
            scaler,
            Repository(channels, config.model_repository),
            channels,
            Logs(config.log_dir),
            Traces(config.trace_dir, clock),
            config.services(),
            rest.address if rest is not None else "",
            stopping,
        )
        server = RpcServer(
            config.listen, max_message_bytes=self._max_message_bytes, tls=config.public_tls, guard=entrance.guard
        )
        server.add(
            inference_service.register,
            InferenceService(seen, desk, clock, config.default_timeout_s, mesh_version, stopping),
            inference.DESCRIPTOR,
        )
        server.add(
            function_service.register,
            OwnedFunctions(seen, feed, front, neighbours, config.default_timeout_s, mesh_version),
            functions.DESCRIPTOR,
        )
        entrance.serve(server)
        await entrance.listen(bus)
        await bus.subscribe(subjects.ROUTING, feed.receive, max_pending=MAX_PENDING_TABLES)
        bus.on_reconnect(feed.refresh)

        async def serve_when_loaded() -> None:
            await routes.loaded.wait()
            await entrance.ready()
            await server.set_serving(True)

        await server.start()
        try:
            if rest is not None:
                await rest.start()
                LOG.info("gateway serves HTTP on %s", rest.address)
            background = [
                tasks.create_task(feed.run()),
                tasks.create_task(windows.run()),
                tasks.create_task(serve_when_loaded()),
                *(tasks.create_task(loop) for loop in entrance.loops()),
                *self._publishing(tasks, Statistics(routes, Queues(channels))),
            ]
            await ready(server.address)
            await stopping.wait()
        finally:
            await asyncio.gather(server.stop(config.drain_s), _stop(rest, config.drain_s))
        return background

    def _publishing(self, tasks: asyncio.TaskGroup, statistics: Statistics) -> list[asyncio.Task[None]]:
        """Triton's metrics, where there are any."""
        return [tasks.create_task(triton_metrics.publish(statistics))] if self._config.metrics_listen else []

    def _rest(self, router: Router, guard: Access) -> HttpServer | None:
        """The HTTP port, taken but not served yet; None where it is turned off. Raises OSError."""
        if not self._config.http_listen:
            return None
        limits = Limits(self._max_message_bytes, self._config.max_http_buffer_mib << 20)
        tls = self._config.public_tls
        context = tls.server_context() if tls is not None else None
        server = HttpServer(self._config.http_listen, make_app(router, limits, HttpAccess(guard)), limits, context)
        server.bind()
        return server


async def _stop(rest: HttpServer | None, drain_s: float) -> None:
    if rest is not None:
        await rest.stop(drain_s)


async def _flush(windows: Windows) -> None:
    try:
        await windows.flush()
    except RouseError as error:
        LOG.warning("the last arrivals are not counted: %s", error)
