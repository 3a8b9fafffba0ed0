"""Deleting functions to the last byte, over restarts and with nodes that are away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from rouse_cluster_manager.adapters.neighbours import Neighbours
from rouse_cluster_manager.catalogue import not_found
from rouse_cluster_manager.lives import advance
from rouse_cluster_manager.state import Report, at
from rouse_common.clock import Clock
from rouse_common.errors import DeadlineExceeded, RouseError
from rouse_common.locks import KeyedLocks
from rouse_store import Database, Unit
from rouse_store.models import Node, NodeDrop
from rouse_store.text import clean

LOG = logging.getLogger(__name__)
FIRST_RETRY_S = 0.2
MAX_RETRY_S = 2.0
CONCURRENT_CALLS = 16
REASON = "its function is being deleted"


@dataclass(frozen=True)
class Plan:
    """What is left to do for one function.

    Attributes:
        live: addresses of coordinators by instance; those of LOST nodes have ended with them.
        versions: digests of artefacts by version.
        condemned: digests of the artefacts that no other function uses.
    """

    name: str
    live: dict[str, str]
    versions: dict[str, str]
    condemned: frozenset[str]


@dataclass
class _Job:
    name: str
    task: asyncio.Task[None]
    waiting_for: str = field(default="its turn")


class Deletions:
    """Every function that is DELETING has one task here, which does not end before the function is gone.

    Args:
        tasks: where the tasks live.
        artefact_locks: see Catalogue.
        grace_ms: what executes gets so long to end.
    """

    def __init__(
        self, database: Database, neighbours: Neighbours, artefact_locks: KeyedLocks, clock: Clock,
        tasks: asyncio.TaskGroup, *, grace_ms: int,
    ) -> None:  # fmt: skip
        self._database, self._neighbours, self._clock = database, neighbours, clock
        self._locks, self._tasks, self._grace_ms = artefact_locks, tasks, grace_ms
        self._jobs: dict[str, _Job] = {}
        self._calls = asyncio.Semaphore(CONCURRENT_CALLS)

    async def delete(self, name: str, timeout_s: float) -> None:
        """Returns when the function and everything of it is gone.

        Raises NotFound FUNCTION_NOT_FOUND, and DeadlineExceeded saying what is waited for; the deletion goes
        on then.
        """
        now = self._clock.now()
        function_id = await self._database.run(lambda unit: _begin(unit, name, now))
        job = self._start(function_id, name)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(job.task)
        except TimeoutError:
            raise DeadlineExceeded(
                "DELETION_CONTINUES", f"function '{name}' is still being deleted, waiting for {job.waiting_for}; "
                "the deletion goes on by itself", function=name,
            ) from None  # fmt: skip

    async def resume(self) -> None:
        """Takes up deletions that an earlier run of this process began."""
        for function in await self._database.run(lambda unit: unit.functions.deleting()):
            self._start(function.function_id, function.name)

    async def carry_out_drops(self) -> None:
        """Has nodes that are back give back what they were told to while they were away."""

        def work(unit: Unit) -> tuple[list[NodeDrop], dict[str, Node], set[str]]:
            nodes = {node.node_id: node for node in unit.nodes.all() if node.state == "READY"}
            drops = [drop for drop in unit.nodes.drops() if drop.node_id in nodes]
            return drops, nodes, unit.functions.usable_artefacts({drop.artefact_digest for drop in drops})

        drops, nodes, in_use = await self._database.run(work)
        await self._together(self._drop(drop, nodes[drop.node_id], drop.artefact_digest in in_use) for drop in drops)

    def tasks(self) -> list[asyncio.Task[None]]:
        """What is under way."""
        return [job.task for job in self._jobs.values()]

    def _start(self, function_id: str, name: str) -> _Job:
        job = self._jobs.get(function_id)
        if job is None:
            job = self._jobs[function_id] = _Job(
                name, self._tasks.create_task(self._finish(function_id), name=f"delete {name}")
            )
        return job

    async def _finish(self, function_id: str) -> None:
        retry_s = FIRST_RETRY_S
        try:
            while True:
                try:
                    await self._attempt(function_id)
                    return
                except RouseError as error:
                    job = self._jobs[function_id]
                    if job.waiting_for != error.message:
                        LOG.warning("deletion waits function=%s reason=%s", job.name, error)
                    job.waiting_for = error.message
                await asyncio.sleep(retry_s)
                retry_s = min(MAX_RETRY_S, retry_s * 2)
        finally:
            del self._jobs[function_id]

    async def _attempt(self, function_id: str) -> None:
        plan = await self._database.run(lambda unit: _plan(unit, function_id))
        if plan is None:
            return
        await self._together(self._stop(plan.name, i, address) for i, address in plan.live.items())
        now = self._clock.now()
        drops, nodes = await self._database.run(lambda unit: _order_drops(unit, plan, now))
        await self._together(
            self._drop(drop, nodes[drop.node_id], drop.artefact_digest not in plan.condemned)
            for drop in drops
            if drop.node_id in nodes
        )
        for digest in plan.condemned:
            async with self._locks.holding(digest):
                await self._neighbours.delete_artefact(digest)
        await self._database.run(lambda unit: _remove(unit, function_id, plan, now))
        LOG.info(
            "function deleted function=%s versions=%d artefacts=%d", plan.name, len(plan.versions), len(plan.condemned)
        )

    async def _stop(self, function: str, instance_id: str, address: str) -> None:
        async with self._calls:
            await self._neighbours.stop_instance(address, instance_id, self._grace_ms, REASON)
        now = self._clock.now()

        def work(unit: Unit) -> None:
            row = unit.instances.get(instance_id, lock=True)
            if row is not None:
                advance(unit, row, Report.GONE, REASON, now)

        await self._database.run(work)

    async def _drop(self, drop: NodeDrop, node: Node, in_use: bool) -> None:
        # Without the digest a node keeps what it has of an artefact but the version's own memory.
        digest = "" if in_use else drop.artefact_digest
        async with self._calls:
            await self._neighbours.drop_version(node.device_address, drop.version_id, digest)
        await self._database.run(lambda unit: unit.nodes.dropped(drop.node_id, drop.version_id))
        LOG.info("version dropped function=%s version=%s node=%s", drop.function, drop.version_id, drop.node_id)

    async def _together(self, work: Iterable[Coroutine[Any, Any, None]]) -> None:
        """All of them, also where one fails; then raises the first failure."""
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        # What is not an error of a neighbour is a fault of ours and must not hide behind one.
        for failure in sorted(failures, key=lambda failure: isinstance(failure, RouseError)):
            raise failure


def _begin(unit: Unit, name: str, time: float) -> str:
    function = unit.functions.find(clean(name), lock=True)
    if function is None:
        raise not_found(name)
    if function.state == "ACTIVE":
        function.state, function.since, unit.routing_changed = "DELETING", at(time), True
        unit.record(at(time), "function.deleting", name, f"{len(function.versions)} versions")
        LOG.info("function is being deleted function=%s versions=%d", name, len(function.versions))
    return function.function_id


def _plan(unit: Unit, function_id: str) -> Plan | None:
    function = unit.functions.get(function_id, lock=True)
    if function is None:
        return None
    nodes = {node.node_id: node for node in unit.nodes.all()}
    live = unit.instances.of_function(function_id, live=True)
    return Plan(
        name=function.name,
        live={row.instance_id: nodes[row.node_id].coordinator_address for row in live},
        versions={version.version_id: version.artefact_digest for version in function.versions},
        condemned=frozenset(unit.functions.condemn_artefacts(function_id)),
    )


def _order_drops(unit: Unit, plan: Plan, time: float) -> tuple[list[NodeDrop], dict[str, Node]]:
    """Writes down what every node has to give back; returns that, and the nodes that can do it now."""
    nodes = unit.nodes.all()
    unit.nodes.order_drops(
        [
            {"node_id": node.node_id, "version_id": version_id, "artefact_digest": digest, "function": plan.name,
             "ordered_at": at(time)}
            for node in nodes
            for version_id, digest in plan.versions.items()
        ]
    )  # fmt: skip
    return unit.nodes.drops(version_ids=plan.versions), {n.node_id: n for n in nodes if n.state == "READY"}


def _remove(unit: Unit, function_id: str, plan: Plan, time: float) -> None:
    unit.functions.remove(function_id)
    unit.routing_changed = True
    unit.record(at(time), "function.deleted", plan.name, f"{len(plan.versions)} versions and all that was theirs")
