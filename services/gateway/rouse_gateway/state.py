"""The routing table as this gateway uses it: indexed, replaced as a whole, watched by who waits for a change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from rouse_common.errors import InvalidArgument, NotFound, Unavailable
from rouse_contracts.cluster import FunctionRoute, RoutingTable
from rouse_contracts.functions import FUNCTION_STATE_SLEEPING, FunctionSpec, FunctionState, FunctionVersion
from rouse_contracts.node import InferRequest
from rouse_gateway import metrics
from rouse_policy import traffic
from rouse_policy.routing import Candidate

LOG = logging.getLogger(__name__)

DEFAULT_QUEUE_CAPACITY = 256
NOT_READY_RETRY_S = 1.0


@dataclass(frozen=True)
class Version:
    """One version of a function, with what checking and routing a request needs.

    Args:
        function, version_id: whose and which.
        number: 1, 2, 3, … as clients write it.
        inputs: datatype and shape of each input by name.
        outputs: names of the outputs.
        active: whether requests without a version mean this one, or most of them.
        candidates: nodes with a READY instance.
        tape_nodes: nodes that have tapes of it, which answer without an instance.
        contract: the version as cluster-manager describes it.
        head: what a node.InferRequest says of the version, serialised: the same for every request.
        state, reason: how its instances stand, as the state of a function.
    """

    function: str
    version_id: str
    number: str
    inputs: Mapping[str, tuple[str, tuple[int, ...]]]
    outputs: tuple[str, ...]
    active: bool
    candidates: tuple[Candidate, ...]
    contract: FunctionVersion
    head: bytes
    tape_nodes: tuple[Candidate, ...] = ()
    state: int = FUNCTION_STATE_SLEEPING
    reason: str = ""

    @property
    def decoupled(self) -> bool:
        """Whether a request has any number of responses."""
        return self.contract.spec.decoupled

    @property
    def max_batch_size(self) -> int:
        """Rows that are executed together at most; 1 or 0 where the function is not batchable."""
        return self.contract.spec.batching.max_batch_size


@dataclass(frozen=True)
class Route:
    """A function of the table: its state with the reason, its versions by number ("" is the active one), and
    how requests that name no version are shared (nothing: all to the active one)."""

    name: str
    state: int
    reason: str
    versions: Mapping[str, Version]
    ready_instances: int
    shares: tuple[traffic.Share, ...] = ()
    # Who it belongs to, whether others see it, and how many of its requests may be in flight (0: any number).
    tenant: str = ""
    shared: bool = False
    max_concurrent: int = 0
    # Numbers of decoupled versions; "" among them where requests that name none may meet one.
    decoupled: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Table:
    """A routing table, indexed."""

    generation: int = 0
    functions: Mapping[str, Route] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    routers: Mapping[str, str] = field(default_factory=dict)
    instances: Mapping[str, int] = field(default_factory=dict)

    def route(self, name: str) -> Route:
        """Raises NotFound in the words that clients of the inference protocol expect."""
        route = self.functions.get(name)
        if route is None:
            raise NotFound("FUNCTION_NOT_FOUND", f"Request for unknown model: '{name}' is not found", function=name)
        return route

    def version(self, name: str, number: str) -> Version:
        """The version that a request means; "" is the active one. Raises NotFound, InvalidArgument."""
        route = self.route(name)
        version = route.versions.get(number)
        if version is not None:
            return version
        if not (number.isascii() and number.isdigit()):
            raise InvalidArgument(
                "BAD_VERSION", f"version '{number[:40]}' of function '{name}': versions are digits, as 1", function=name
            )
        known = ", ".join(key for key in route.versions if key)
        raise NotFound(
            "VERSION_NOT_FOUND",
            f"Request for unknown model: '{name}' version {number[:40]} is not found; there is {known}",
            function=name,
            version=number[:40],
        )

    def chosen(self, name: str, number: str, request_id: str) -> Version:
        """As `version`; a request that names none gets one by the shares of the function's traffic, always the
        same one for the same id."""
        shares = self.route(name).shares
        if number or not shares:
            return self.version(name, number)
        return self.version(name, str(traffic.choose(name, shares, request_id)))


def index(table: RoutingTable) -> Table:
    """A routing table as it came, indexed. Takes milliseconds for hundreds of functions: not for the event loop."""
    # Without the address of its link, which it tells when it registers, a node cannot be called.
    waiting = {node.node_id: node.queued_requests for node in table.nodes if node.link_address}
    residency: dict[tuple[str, str], str] = {}
    taped: dict[str, set[str]] = {}
    for node in table.nodes:
        for row in node.residency:
            # On a device beats beside it: a version may stand on several tiers of one node.
            key = (row.version_id, node.node_id)
            if key not in residency or row.device:
                residency[key] = row.state
            if row.tapes and node.link_address:
                taped.setdefault(row.version_id, set()).add(node.node_id)
    instances: dict[str, int] = {}
    for route in table.functions:
        for instance in route.instances:
            instances[instance.node_id] = instances.get(instance.node_id, 0) + 1
    return Table(
        generation=table.generation,
        functions={route.name: _index_route(route, waiting, residency, taped) for route in table.functions},
        addresses={node.node_id: node.link_address for node in table.nodes if node.link_address},
        routers={node.node_id: node.router_address for node in table.nodes},
        instances=instances,
    )


def _index_route(
    route: FunctionRoute,
    waiting: Mapping[str, int],
    residency: Mapping[tuple[str, str], str],
    taped: Mapping[str, Collection[str]],
) -> Route:
    nodes: dict[str, list[str]] = {}
    for instance in route.instances:
        if instance.node_id in waiting:
            found = nodes.setdefault(instance.version_id, [])
            if instance.node_id not in found:
                found.append(instance.node_id)
    versions: dict[str, Version] = {}
    states = {route.active_version_id: (route.state, route.reason)}
    states |= {entry.version_id: (entry.state, entry.reason) for entry in route.version_states}
    for contract in route.versions:
        state, reason = states.get(contract.version_id, (FUNCTION_STATE_SLEEPING, ""))
        version = Version(
            function=route.name,
            version_id=contract.version_id,
            number=str(contract.version),
            inputs={t.name: (t.datatype, tuple(t.shape)) for t in contract.spec.signature.inputs},
            outputs=tuple(t.name for t in contract.spec.signature.outputs),
            active=contract.version_id == route.active_version_id,
            candidates=tuple(
                # Without weights there is nothing to swap: every node is as good as a device.
                Candidate(
                    node,
                    residency.get((contract.version_id, node), "") if contract.weights_bytes else "DEVICE",
                    waiting[node],
                )
                for node in sorted(nodes.get(contract.version_id, ()))
            ),
            contract=contract,
            head=_head(contract, route.name),
            tape_nodes=tuple(
                Candidate(node, residency[contract.version_id, node], waiting[node])
                for node in sorted(taped.get(contract.version_id, ()))
            ),
            state=state,
            reason=reason,
        )
        versions[version.number] = version
        if version.active:
            versions[""] = version
    shares = tuple(traffic.Share(share.version, share.percent) for share in route.traffic)
    spec = versions[""].contract.spec if "" in versions else FunctionSpec()
    decoupled = {number for number, version in versions.items() if version.decoupled}
    if any(str(share.version) in decoupled for share in shares):
        decoupled.add("")
    return Route(
        route.name, route.state, route.reason, versions, len(route.instances), shares,
        tenant=route.tenant, shared=spec.shared, max_concurrent=spec.limits.max_concurrent_requests,
        decoupled=frozenset(decoupled),
    )  # fmt: skip


def _head(contract: FunctionVersion, function: str) -> bytes:
    spec = contract.spec
    head: bytes = InferRequest(
        function=function,
        version_id=contract.version_id,
        queue_capacity=spec.queue_capacity or DEFAULT_QUEUE_CAPACITY,
        batching=spec.batching if spec.HasField("batching") else None,
        decoupled=spec.decoupled,
        objective_ms=spec.objective.latency_ms,
    ).SerializeToString()
    return head


class Routes:
    """The table in use. A higher generation replaces it; waiters are woken by every replacement."""

    def __init__(self) -> None:
        self._table = Table()
        self.loaded = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def table(self) -> Table:
        """The table in use."""
        return self._table

    @property
    def generation(self) -> int:
        """Of the table in use."""
        return self._table.generation

    def loaded_table(self) -> Table:
        """The table in use. Raises Unavailable NOT_READY before the first one."""
        if not self.loaded.is_set():
            raise Unavailable(
                "NOT_READY",
                "the gateway has no routing table yet; it waits for cluster-manager",
                retry_after_s=NOT_READY_RETRY_S,
            )
        return self.table

    def apply(self, table: Table, *, restored: bool = False) -> bool:
        """Takes a table with a higher generation into use and says whether it did; with `restored`, one with
        any generation. The same generation fetched again may carry newer loads and is taken, too."""
        if not restored and table.generation < self.table.generation and self.loaded.is_set():
            return False
        before, self._table = self._table, table
        metrics.TABLE_GENERATION.set(table.generation)
        metrics.TABLE_FUNCTIONS.set(len(table.functions))
        for gone in before.functions.keys() - table.functions.keys():
            metrics.forget(gone)
        if not self.loaded.is_set():
            LOG.info("routing table loaded generation=%d functions=%d", table.generation, len(table.functions))
            self.loaded.set()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return True

    async def change(self, timeout_s: float) -> None:
        """Returns at the next replacement of the table, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return


def state_name(state: int) -> str:
    """As "WAKING"."""
    return FunctionState.Name(state).removeprefix("FUNCTION_STATE_")
