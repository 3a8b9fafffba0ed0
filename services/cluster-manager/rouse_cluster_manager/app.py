"""cluster-manager, put together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rouse_bus import Bus
from rouse_cluster_manager import routing
from rouse_cluster_manager.access import table as access_table
from rouse_cluster_manager.access.keys import Keys
from rouse_cluster_manager.access.secrets import Secrets
from rouse_cluster_manager.access.service import AccessService
from rouse_cluster_manager.access.tenants import Tenants
from rouse_cluster_manager.access.vault import Vault
from rouse_cluster_manager.adapters import rows
from rouse_cluster_manager.adapters.neighbours import Neighbours
from rouse_cluster_manager.announcer import Announcer
from rouse_cluster_manager.catalogue import Catalogue
from rouse_cluster_manager.config import ClusterManagerConfig
from rouse_cluster_manager.deletion import Deletions
from rouse_cluster_manager.fleet import Fleet
from rouse_cluster_manager.instances import Instances
from rouse_cluster_manager.ledger import ACCRUE_S, Ledger
from rouse_cluster_manager.publisher import AccessPublisher, RoutingPublisher
from rouse_cluster_manager.service import ClusterService
from rouse_cluster_manager.supervisor import Gate, Supervisor
from rouse_cluster_manager.traffic import Traffic
from rouse_common.clock import SystemClock
from rouse_common.locks import KeyedLocks
from rouse_common.rpc import RpcServer
from rouse_common.tasks import periodically
from rouse_contracts import access, cluster
from rouse_store import Database, Unit

SUPERVISE_S = 0.5
EXPIRE_S = 1.0
DROP_S = 1.0
PRUNE_S = 60.0
LOST_CHECKS = 10
FLUSH_S = 1.0


class ClusterManager:
    """The control plane's only writer."""

    def __init__(self, config: ClusterManagerConfig) -> None:
        self._config = config
        self._clock = SystemClock()

    async def run(self, ready: Callable[[str], Awaitable[None]], stopping: asyncio.Event) -> None:
        """Answers as soon as it listens; until the database is there that is UNAVAILABLE, and health says so."""
        config = self._config
        vault = Vault.open(config.secrets_key_file)
        server = RpcServer(config.listen, max_message_bytes=config.max_message_mib << 20, tls=config.tls)
        bus = Bus.open(config.nats, "cluster-manager")
        neighbours = Neighbours(config.model_repository, config.max_message_mib << 20, config.tls)
        database = Database(config.database, on_commit=lambda unit: self._committed(unit))
        try:
            async with asyncio.TaskGroup() as tasks:
                supervisor = self._wire(server, bus, neighbours, database, vault, tasks)
                await server.start()
                background = [tasks.create_task(work, name=name) for name, work in self._loops(supervisor).items()]
                await ready(server.address)
                await stopping.wait()
                await server.stop(config.drain_s)
                await self._announcer.flush(FLUSH_S)
                # Deletions that wait for a node go on after the next start.
                for task in (*background, *self._deletions.tasks()):
                    task.cancel()
            await supervisor.close()
        finally:
            await server.stop(0)
            await neighbours.close()
            await bus.close()
            await database.close()

    def _wire(
        self, server: RpcServer, bus: Bus, neighbours: Neighbours, database: Database, vault: Vault,
        tasks: asyncio.TaskGroup,
    ) -> Supervisor:  # fmt: skip
        config, clock = self._config, self._clock
        locks, gate, cache = KeyedLocks(), Gate(), routing.VersionCache()
        self._announcer = Announcer(bus)

        async def read() -> cluster.RoutingTable:
            gate.check()
            reports = self._fleet.reports()
            return await database.run(lambda unit: routing.read(unit, reports, cache), isolation="REPEATABLE READ")

        async def read_access() -> access.AccessTable:
            gate.check()
            return await database.run(lambda unit: access_table.read(unit, clock.now()), isolation="REPEATABLE READ")

        self._routing, self._access = RoutingPublisher(read, bus), AccessPublisher(read_access, bus)

        async def reconnected() -> None:
            self._routing.repeat()
            self._access.repeat()

        bus.on_reconnect(reconnected)
        self._fleet = Fleet(
            database, clock, lost_after_s=config.node_lost_ms / 1000, forget_after_s=config.forget_node_s,
            stop_limit_s=config.stop_limit_s, on_report=self._routing.touched, forget=neighbours.forget,
        )  # fmt: skip
        self._keys, secrets = Keys(database, clock), Secrets(database, vault, clock)
        self._instances = Instances(
            database, self._fleet, clock, secrets.resolve, pending_limit_s=config.pending_limit_s,
            start_limit_s=config.start_limit_s,
        )  # fmt: skip
        catalogue = Catalogue(database, neighbours, self._fleet, locks, clock, config.executors)
        self._deletions = Deletions(database, neighbours, locks, clock, tasks, grace_ms=config.stop_grace_ms)
        self._ledger = Ledger(
            database, clock, keep_events=config.keep_events, keep_usage=config.keep_usage, keep_ended=config.keep_ended
        )
        service = ClusterService(
            gate, self._fleet, catalogue, Traffic(database, clock), self._instances, self._deletions, self._ledger,
            self._routing, config.heartbeat_ms,
        )  # fmt: skip
        server.add(cluster.add_ClusterServiceServicer_to_server, service, cluster.DESCRIPTOR)
        gatekeeper = AccessService(gate, Tenants(database, clock), self._keys, secrets, self._access)
        server.add(access.add_AccessServiceServicer_to_server, gatekeeper, access.DESCRIPTOR)
        self._gate = gate
        return Supervisor(config.database, database, gate, begin=self._begin, serving=server.set_serving)

    def _committed(self, unit: Unit) -> None:
        if unit.routing_changed:
            self._routing.changed()
        if unit.access_changed:
            self._access.changed()
        for event in unit.recorded:
            self._announcer.add(rows.event_message(event))

    async def _begin(self) -> None:
        """The database is there (again): take over what it knows."""
        await self._fleet.reload()
        await self._deletions.resume()
        await self._keys.bootstrap(self._config.bootstrap_key)
        self._routing.changed()
        self._access.changed()

    def _loops(self, supervisor: Supervisor) -> dict[str, Coroutine[Any, Any, None]]:
        lost_s = self._config.node_lost_ms / 1000
        return {
            "supervisor": periodically("reaching the database", SUPERVISE_S, supervisor.check),
            "routing": self._routing.run(),
            "access": self._access.run(),
            "events": self._announcer.run(),
            "nodes": self._when_open("watching nodes", lost_s / LOST_CHECKS, self._fleet.check_lost),
            "instances": self._when_open("watching instances", EXPIRE_S, self._instances.expire),
            "drops": self._when_open("having nodes drop versions", DROP_S, self._deletions.carry_out_drops),
            "ledger": self._when_open("forgetting what is old", PRUNE_S, self._ledger.prune),
            "host memory": self._when_open("counting host memory", ACCRUE_S, self._ledger.accrue_host_memory),
            "old keys": self._when_open("forgetting keys", PRUNE_S, self._keys.prune),
            "old nodes": self._when_open("forgetting nodes", PRUNE_S, self._fleet.forget_lost),
        }

    def _when_open(
        self, what: str, interval_s: float, action: Callable[[], Awaitable[object]]
    ) -> Coroutine[Any, Any, None]:
        """Periodically, but not while there is no database to do it with: the supervisor speaks of that."""

        async def if_open() -> None:
            if self._gate.is_open:
                await action()

        return periodically(what, interval_s, if_open)
