"""The database, NATS or cluster-manager itself goes away and comes back; another one waits for its turn."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rouse_bus import Bus, subjects
from rouse_common.errors import RouseError, Unavailable
from rouse_common.rpc import Channels
from rouse_contracts import cluster, functions
from rouse_embedded.stores import Nats, Postgres
from rouse_testkit.control_plane import CALL_TIMEOUT_S, ControlPlane, control_plane, digest_of

NO_NATS = "nats://127.0.0.1:9"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def health(address: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
        return answer.status


async def every_rpc(plane: ControlPlane) -> dict[str, RouseError]:
    """What each RPC fails with."""
    spec = functions.FunctionSpec(name="f")
    requests = {
        "RegisterNode": cluster.RegisterNodeRequest(node=(await plane.node("n9")).node()),
        "Heartbeat": cluster.HeartbeatRequest(node_id="n0", incarnation="1"),
        "ListNodes": cluster.ListNodesRequest(),
        "CreateVersion": cluster.CreateVersionRequest(spec=spec, artefact_digest=digest_of("f")),
        "GetFunction": cluster.GetFunctionRequest(name="f"),
        "ListFunctions": cluster.ListFunctionsRequest(),
        "SetTraffic": cluster.SetTrafficRequest(name="f"),
        "RollBack": cluster.RollBackRequest(name="f"),
        "DeleteFunction": cluster.DeleteFunctionRequest(name="f"),
        "CreateInstance": cluster.CreateInstanceRequest(version_id="v"),
        "ReportInstance": cluster.ReportInstanceRequest(instance_id="i", state="INSTANCE_STATE_READY"),
        "ListInstances": cluster.ListInstancesRequest(),
        "RecordUsage": cluster.RecordUsageRequest(records=[cluster.UsageRecord(request_id="r", function="f")]),
        "GetUsage": cluster.GetUsageRequest(),
        "ListEvents": cluster.ListEventsRequest(),
        "GetRoutingTable": cluster.GetRoutingTableRequest(),
    }
    methods = {method.name for method in cluster.DESCRIPTOR.services_by_name["ClusterService"].methods}
    assert set(requests) == methods
    failures = {}
    for method, request in requests.items():
        with pytest.raises(RouseError) as caught:
            await plane.call(method, request)
        failures[method] = caught.value
    return failures


@pytest.fixture
def own_postgres(tmp_path: Path):
    """A server that this test may kill; what it has committed survives that."""
    server = Postgres(tmp_path / "postgres")
    server.start()
    yield server
    server.stop()


async def test_the_database_goes_away_and_comes_back(own_postgres: Postgres) -> None:
    async with control_plane(own_postgres.url, NO_NATS, heartbeat_ms=100, node_lost_ms=1500) as plane:
        node = await plane.node("n0")
        await plane.register(node)
        await plane.beat(node)
        version = await plane.deploy("f")
        instance = await plane.run_instance(version, node)
        before = await plane.table()
        assert await health(plane.address) == SERVING

        await asyncio.to_thread(own_postgres.kill)
        await plane.becomes(lambda: health(plane.address), lambda state: state == NOT_SERVING)
        for method, error in (await every_rpc(plane)).items():
            assert (type(error), error.reason) == (Unavailable, "DATABASE_DOWN"), method
            assert error.retry_after_s, method

        # Longer away than a silent node has time: heartbeats still come, so it is not lost.
        async def beat() -> None:
            with pytest.raises(Unavailable):
                await plane.beat(node)

        for _ in range(20):
            await beat()
            await asyncio.sleep(0.1)
        restart = asyncio.create_task(asyncio.to_thread(own_postgres.start))

        async def beats() -> bool:
            try:
                await plane.beat(node)
            except Unavailable:
                return False
            return True

        await plane.becomes(beats, bool)
        await restart
        assert await health(plane.address) == SERVING
        assert list(await plane.instances()) == [instance.instance_id]
        after = await plane.table()
        assert after.functions == before.functions
        assert after.generation >= before.generation
        await plane.delete("f")


async def test_a_start_without_a_database_waits_for_it(tmp_path: Path) -> None:
    server = Postgres(tmp_path / "postgres", durable=False)
    await asyncio.to_thread(server.prepare)
    channels = Channels(1 << 20)
    plane = ControlPlane({"database": server.url, "nats": NO_NATS}, channels)
    try:
        await plane.serve_repository()
        await plane.start()
        assert await health(plane.address) == NOT_SERVING
        assert {error.reason for error in (await every_rpc(plane)).values()} == {"DATABASE_DOWN"}
        await asyncio.to_thread(server.start)
        await plane.serving()
        await plane.deploy("f")
    finally:
        await plane.close()
        await channels.close()
        await asyncio.to_thread(server.stop)


async def test_a_second_one_waits_until_the_first_is_gone(postgres_url: str) -> None:
    async with control_plane(postgres_url, NO_NATS) as first:
        await first.deploy("f")
        second = ControlPlane(first.settings, first._channels)
        await second.start()
        try:
            failure = await second.until(lambda: _standby(second), AssertionError)
            assert "another cluster-manager" in failure.message
            await first.deploy("f")
            await first.stop()
            await second.serving()
            assert (await second.deploy("f")).version == 3
        finally:
            await second.close()


async def _standby(plane: ControlPlane) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        await plane.nodes()
    assert caught.value.reason == "STANDBY"
    return caught.value


class Listener:
    """What a gateway hears."""

    def __init__(self) -> None:
        self.tables: asyncio.Queue[cluster.RoutingTable] = asyncio.Queue()
        self.events: asyncio.Queue[functions.Event] = asyncio.Queue()

    async def listen(self, bus: Bus) -> None:
        await bus.subscribe(subjects.ROUTING, self._table)
        await bus.subscribe(subjects.all_events(), self._event)

    async def _table(self, data: bytes) -> None:
        self.tables.put_nowait(cluster.RoutingTable.FromString(data))

    async def _event(self, data: bytes) -> None:
        self.events.put_nowait(functions.Event.FromString(data))

    async def table_with(self, names: set[str]) -> cluster.RoutingTable:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while True:
                table = await self.tables.get()
                if {route.name for route in table.functions} == names:
                    return table

    async def event_of(self, kind: str) -> functions.Event:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while (event := await self.events.get()).kind != kind:
                pass
            return event


async def test_changes_are_published_also_those_while_nats_was_away(postgres_url: str, nats: Nats) -> None:
    bus, listener = await Bus.connect(nats.url, "test"), Listener()
    try:
        await listener.listen(bus)
        async with control_plane(postgres_url, nats.url) as plane:
            await plane.deploy("f")
            first = await listener.table_with({"f"})
            event = await listener.event_of("function.deployed")
            assert (event.subject, event.message[:9]) == ("f", "version 1")
            await asyncio.to_thread(nats.kill)
            await plane.deploy("g")
            assert len((await plane.table()).functions) == 2
            await asyncio.to_thread(nats.start)
            second = await listener.table_with({"f", "g"})
            assert second.generation > first.generation
            await plane.delete("f")
            assert (await listener.table_with({"g"})).generation > second.generation
            assert (await listener.event_of("function.deleted")).subject == "f"
    finally:
        await bus.close()


async def test_generations_rise_over_restarts_and_state_survives(postgres_url: str) -> None:
    async with control_plane(postgres_url, NO_NATS, heartbeat_ms=100, node_lost_ms=2000) as plane:
        node, silent = await plane.node("n0"), await plane.node("n1")
        for each in (node, silent):
            await plane.register(each)
        version = await plane.deploy("f")
        node.hold(version, "HOST")
        await plane.beat(node)
        instance = await plane.run_instance(version, node)
        before = await plane.table()
        await plane.stop()
        await plane.start()
        await plane.serving()
        after = await plane.table()
        assert after.generation > before.generation
        assert after.functions == before.functions
        assert [e.state for route in after.nodes for e in route.residency] == ["HOST"], "as it was written"

        async def nodes() -> dict[str, cluster.Node]:
            assert await plane.beat(node) == []
            return await plane.nodes()

        await plane.becomes(nodes, lambda found: found["n1"].state == cluster.NODE_STATE_LOST)
        assert list(await plane.instances()) == [instance.instance_id]


def test_the_process_stops_at_sigterm_with_0_and_says_when_it_is_ready(postgres_url: str) -> None:
    environment = {"ROUSE_CLUSTER_MANAGER_DATABASE": postgres_url, "ROUSE_CLUSTER_MANAGER_NATS": NO_NATS}
    process = subprocess.Popen(
        [sys.executable, "-m", "rouse_cluster_manager"], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready 127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, log
    password = postgres_url.split(":")[2].split("@")[0]
    assert password not in log
    assert "Traceback" not in log
