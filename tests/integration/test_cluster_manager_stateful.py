"""Whatever happens in whatever order, the routing table names what can serve and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine, create_engine, text

from rouse_cluster_manager import routing
from rouse_cluster_manager.catalogue import Catalogue
from rouse_cluster_manager.deletion import Deletions
from rouse_cluster_manager.fleet import Fleet
from rouse_cluster_manager.instances import Instances
from rouse_cluster_manager.traffic import Traffic
from rouse_common.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from rouse_common.locks import KeyedLocks
from rouse_contracts import cluster, functions, repository
from rouse_store import Database, migrate
from rouse_testkit.clock import ManualClock
from rouse_testkit.control_plane import MIB, digest_of, signature

NAMES, NODES = ("f", "g"), ("n0", "n1")
REPORTS = ("STARTING", "READY", "STOPPING", "ENDED", "FAILED", "LOST")
LOST_AFTER_S = 5.0
TRUTH = text(
    "SELECT i.instance_id, i.state, i.node_id, n.state AS node_state, n.incarnation, i.node_incarnation, f.name, "
    "f.state AS function_state FROM instances i JOIN nodes n USING (node_id) JOIN versions v USING (version_id) "
    "JOIN functions f USING (function_id)"
)


class World:
    """The nodes' services and model-repository, as Neighbours reaches them: nodes may be away."""

    def __init__(self) -> None:
        self.away: set[str] = set()

    async def artefact(self, digest: str) -> repository.Artefact:
        return repository.Artefact(
            digest=digest, format=functions.ARTEFACT_FORMAT_HUGGING_FACE, size_bytes=MIB, signature=signature(),
            layout=repository.WeightsLayout(image_bytes=MIB),
        )  # fmt: skip

    async def delete_artefact(self, digest: str) -> None:
        pass

    async def stop_instance(self, address: str, instance_id: str, grace_ms: int, reason: str) -> None:
        self._reach(address)

    async def drop_version(self, address: str, version_id: str, digest: str) -> None:
        self._reach(address)

    async def forget(self, addresses: set[str]) -> None:
        pass

    def _reach(self, address: str) -> None:
        if address in self.away:
            raise Unavailable("NODE_AWAY", address)


class Mesh(RuleBasedStateMachine):
    """The parts of cluster-manager on a real database, with a clock that stands still."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.engine: Engine = create_engine(self.url)
        with self.engine.begin() as connection:
            connection.execute(text("TRUNCATE functions, versions, artefacts, nodes, events CASCADE"))
        self.clock, self.world = ManualClock(), World()
        self.database = Database(self.url)
        self.fleet = Fleet(
            self.database, self.clock, lost_after_s=LOST_AFTER_S, forget_after_s=1e9, stop_limit_s=60,
            on_report=lambda: None, forget=self.world.forget,
        )  # fmt: skip
        locks, world = KeyedLocks(), self.world
        self.catalogue = Catalogue(self.database, world, self.fleet, locks, self.clock)  # type: ignore[arg-type]
        self.traffic = Traffic(self.database, self.clock)
        self.instances = Instances(
            self.database, self.fleet, self.clock, lambda *_: {}, pending_limit_s=3, start_limit_s=8
        )
        self.locks, self.cache = locks, routing.VersionCache()
        self.generation = 0
        self.incarnations = dict.fromkeys(NODES, 0)
        self.versions: list[str] = []
        self.placed: list[str] = []

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    @initialize()
    def a_mesh_at_work(self) -> None:
        """Two nodes, two functions that share an artefact, an instance each on its way."""
        for node_id in NODES:
            self.register(node_id, anew=False)
        for name in NAMES:
            self.deploy(name, "a", most=2)
            placed = self.run(self.instances.create(self.versions[-1], ""))
            self.placed.append(placed.instance.instance_id)
            self.run(self.instances.report(self.placed[-1], cluster.INSTANCE_STATE_READY, ""))

    @rule(name=st.sampled_from(NAMES), artefact=st.sampled_from("ab"), most=st.integers(1, 3), aside=st.booleans())
    def deploy(self, name: str, artefact: str, most: int, aside: bool = False) -> None:
        spec = functions.FunctionSpec(name=name, scaling=functions.Scaling(max_instances=most))
        try:
            request = cluster.CreateVersionRequest(
                spec=spec, artefact_digest=digest_of(artefact), without_traffic=aside
            )
            version = self.run(self.catalogue.create_version(request)).version
        except FailedPrecondition:
            return
        self.versions.append(version.version_id)

    @rule(name=st.sampled_from(NAMES), percents=st.lists(st.integers(1, 99), max_size=3), first=st.integers(1, 3))
    def share(self, name: str, percents: list[int], first: int) -> None:
        percents = [*percents, 100 - sum(percents)]
        shares = [functions.TrafficShare(version=first + i, percent=max(0, p)) for i, p in enumerate(percents)]
        with contextlib.suppress(NotFound, InvalidArgument, FailedPrecondition):
            self.run(self.traffic.set(name, shares))

    @rule(name=st.sampled_from(NAMES))
    def roll_back(self, name: str) -> None:
        with contextlib.suppress(NotFound, FailedPrecondition):
            self.run(self.traffic.roll_back(name))

    @rule(node_id=st.sampled_from(NODES), anew=st.booleans())
    def register(self, node_id: str, anew: bool) -> None:
        self.incarnations[node_id] += anew
        gpu = cluster.DeviceInfo(name="gpu0", kind="host", capacity_bytes=100 * MIB)
        node = cluster.Node(
            node_id=node_id, incarnation=str(self.incarnations[node_id]), router_address=node_id, link_address=node_id,
            device_address=node_id, coordinator_address=node_id, devices=[gpu],
        )  # fmt: skip
        self.run(self.fleet.register(node))

    @rule(node_id=st.sampled_from(NODES), data=st.data())
    def beat(self, node_id: str, data: st.DataObject) -> None:
        held = data.draw(st.lists(st.sampled_from(self.placed), unique=True)) if self.placed else []
        residency = [
            functions.Residency(version_id=version_id, state="HOST", size_bytes=MIB)
            for version_id in (data.draw(st.lists(st.sampled_from(self.versions), max_size=2)) if self.versions else [])
        ]
        request = cluster.HeartbeatRequest(
            node_id=node_id, incarnation=str(self.incarnations[node_id]), instance_ids=held,
            report=cluster.NodeReport(residency=residency),
        )  # fmt: skip
        try:
            stop = self.run(self.fleet.heartbeat(request))
        except NotFound:
            return
        with self.engine.begin() as connection:
            live = {
                row.instance_id
                for row in connection.execute(TRUTH)
                if row.state in ("PENDING", "STARTING", "READY", "STOPPING") and row.node_id == node_id
            }
        assert set(held) - live <= set(stop) <= set(held)

    @rule(node_id=st.sampled_from(NODES))
    def node_goes_away(self, node_id: str) -> None:
        self.world.away ^= {node_id}

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.run(self.fleet.check_lost())
        self.run(self.instances.expire())

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def place(self, data: st.DataObject) -> None:
        try:
            placed = self.run(self.instances.create(data.draw(st.sampled_from(self.versions)), ""))
        except (NotFound, ResourceExhausted, Unavailable):
            return
        self.placed.append(placed.instance.instance_id)

    @precondition(lambda self: self.placed)
    @rule(data=st.data(), state=st.sampled_from(REPORTS))
    def report(self, data: st.DataObject, state: str) -> None:
        number = cluster.InstanceState.Value(f"INSTANCE_STATE_{state}")
        try:
            self.run(self.instances.report(data.draw(st.sampled_from(self.placed)), number, "as drawn"))
        except NotFound:
            return

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        """A deletion that a node holds up is broken off, as if the process ended; any other has its time."""
        with self.engine.begin() as connection:
            ready = set(connection.scalars(text("SELECT node_id FROM nodes WHERE state = 'READY'")))
        patience_s = 0.1 if ready & self.world.away else 20.0

        async def once() -> None:
            async with asyncio.TaskGroup() as tasks:
                world: Any = self.world
                deletions = Deletions(self.database, world, self.locks, self.clock, tasks, grace_ms=0)
                try:
                    with contextlib.suppress(NotFound, DeadlineExceeded):  # gone already, or a node is away
                        await deletions.delete(name, patience_s)
                finally:
                    for task in deletions.tasks():
                        task.cancel()

        self.run(once())

    @rule()
    def restart(self) -> None:
        self.run(self.fleet.reload())
        self.cache = routing.VersionCache()

    @invariant()
    def the_table_is_the_truth(self) -> None:
        reports = self.fleet.reports()
        table = self.run(
            self.database.run(lambda unit: routing.read(unit, reports, self.cache), isolation="REPEATABLE READ")
        )
        assert table.generation > self.generation
        self.generation = table.generation
        with self.engine.begin() as connection:
            rows = connection.execute(TRUTH).all()
            states = {r.name: r.state for r in connection.execute(text("SELECT name, state FROM functions"))}
            ready_nodes = set(connection.scalars(text("SELECT node_id FROM nodes WHERE state = 'READY'")))
        can_serve = {r.instance_id for r in rows if r.state == "READY" and r.function_state == "ACTIVE"}
        assert {entry.instance_id for route in table.functions for entry in route.instances} == can_serve
        assert {route.name for route in table.functions} == {n for n, state in states.items() if state == "ACTIVE"}
        assert {route.node_id for route in table.nodes} == ready_nodes
        for route in table.functions:
            shown = {version.version: version.version_id for version in route.versions}
            assert all(share.version in shown and share.percent > 0 for share in route.traffic)
            if route.traffic:
                assert sum(share.percent for share in route.traffic) == 100
                largest = max(route.traffic, key=lambda share: (share.percent, share.version))
                assert shown[largest.version] == route.active_version_id
        for row in rows:
            if row.state in ("PENDING", "STARTING", "READY", "STOPPING"):
                assert row.node_state == "READY", "no instance outlives its node"
                assert row.node_incarnation == row.incarnation, "no instance outlives its node's incarnation"

    def teardown(self) -> None:
        self.run(self.database.close())
        self.engine.dispose()
        self.runner.close()


def test_the_routing_table_names_what_can_serve_and_nothing_else(postgres_url: str) -> None:
    migrate.upgrade(postgres_url)
    Mesh.url = postgres_url
    run_state_machine_as_test(
        Mesh,
        # Without shrinking, which on a database takes minutes; a failure prints the steps that led to it.
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            phases=[Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
