"""Functions and their versions."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rouse_cluster_manager import placing, shares, specs
from rouse_cluster_manager.access import rules
from rouse_cluster_manager.access.secrets import check_references
from rouse_cluster_manager.adapters import rows
from rouse_cluster_manager.adapters.neighbours import Neighbours
from rouse_cluster_manager.addresses import assign
from rouse_cluster_manager.fleet import Fleet
from rouse_cluster_manager.state import at, function_state
from rouse_common.clock import Clock
from rouse_common.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RouseError,
    Unimplemented,
)
from rouse_common.locks import KeyedLocks
from rouse_contracts import cluster, functions, repository
from rouse_contracts.tapes import counts
from rouse_policy import placement
from rouse_store import Database, Unit
from rouse_store.models import DEFAULT_TENANT, DIGEST_PATTERN, Function, Instance, Version
from rouse_store.text import clean

LOG = logging.getLogger(__name__)
SHOWN_EVENTS = 20
DIGEST = re.compile(DIGEST_PATTERN)
DEPLOYMENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
RETRY_AFTER_S = 1.0
REFUSALS = (InvalidArgument, FailedPrecondition, AlreadyExists, NotFound, ResourceExhausted, Unimplemented)


class Catalogue:
    """Args:
    artefact_locks: by digest; an artefact is neither taken into use while it is being deleted nor the
        other way round.
    executors: whether the nodes have native executors.
    """

    def __init__(
        self, database: Database, neighbours: Neighbours, fleet: Fleet, artefact_locks: KeyedLocks, clock: Clock,
        executors: bool = False,
    ) -> None:  # fmt: skip
        self._database, self._neighbours, self._fleet = database, neighbours, fleet
        self._locks, self._clock, self._executors = artefact_locks, clock, executors

    async def create_version(self, request: cluster.CreateVersionRequest) -> cluster.CreateVersionResponse:
        """Makes the function or one more version of it; see the contract for the errors."""
        spec, digest = request.spec, request.artefact_digest
        specs.check_name(spec.name)
        if request.deployment_id and not DEPLOYMENT_ID.fullmatch(request.deployment_id):
            raise InvalidArgument(
                "BAD_DEPLOYMENT_ID",
                f"deployment id '{clean(request.deployment_id, 140)}': want 1 to 128 letters, digits, '.', '_' or '-'",
                function=spec.name,
            )
        if not DIGEST.fullmatch(digest):
            raise InvalidArgument(
                "BAD_DIGEST", f"artefact '{clean(digest, 80)}': want 64 hex digits", function=spec.name
            )
        async with self._locks.holding(digest):
            artefact = await self._neighbours.artefact(digest)
            try:
                wanted = _Wanted(
                    specs.effective(spec, artefact), artefact, clean(request.tenant) or DEFAULT_TENANT,
                    request.deployment_id, request.only_if_changed, request.without_traffic,
                )  # fmt: skip
                specs.check_execution(wanted.spec, self._executors)
                reports, now = self._fleet.reports(), self._clock.now()
                return await self._database.run(lambda unit: _create_version(unit, wanted, reports, now))
            except REFUSALS as error:
                if error.retry_after_s is None:  # refused for good
                    await self._give_back(digest)
                raise

    async def _give_back(self, digest: str) -> None:
        """Deletes an artefact that was made for a version which is refused, unless another version uses it."""
        if await self._database.run(lambda unit: unit.functions.sharing_artefact(digest)):
            return
        try:
            await self._neighbours.delete_artefact(digest)
        except RouseError as error:
            # The refusal is what the caller has to hear.
            LOG.warning("artefact of a refused version stays artefact=%s reason=%s", digest, error)

    async def get(self, name: str) -> cluster.GetFunctionResponse:
        """Everything about one function. Raises NotFound FUNCTION_NOT_FOUND."""
        reports = self._fleet.reports()
        return await self._database.run(lambda unit: _describe(unit, name, reports), isolation="REPEATABLE READ")

    async def listed(self) -> cluster.ListFunctionsResponse:
        """Functions in the order of names, and versions with traffic beside the active ones."""
        tapes = counts(self._fleet.reports().values())

        def work(unit: Unit) -> cluster.ListFunctionsResponse:
            by_version: dict[str, list[Instance]] = {}
            for row in unit.instances.live_and_latest():
                by_version.setdefault(row.version_id, []).append(row)
            found = unit.functions.all()
            return cluster.ListFunctionsResponse(
                functions=[summary(f, by_version.get(f.active.version_id, []), tapes) for f in found],
                versions=[rows.version_message(row) for f in found for row in shares.beside_active(f)],
            )

        return await self._database.run(work, isolation="REPEATABLE READ")


def not_found(name: str) -> NotFound:
    return NotFound(
        "FUNCTION_NOT_FOUND", f"there is no function '{clean(name, 140)}'; `rouse functions` lists them", function=name
    )


@dataclass(frozen=True)
class _Wanted:
    """A version to be made: its effective spec, its artefact, whose it is, and the rest of the request."""

    spec: functions.FunctionSpec
    artefact: repository.Artefact
    tenant: str
    deployment_id: str
    only_if_changed: bool
    without_traffic: bool


def _create_version(
    unit: Unit, wanted: _Wanted, reports: placing.Reports, time: float
) -> cluster.CreateVersionResponse:
    now, name, artefact = at(time), wanted.spec.name, wanted.artefact
    nodes = unit.nodes.all()
    weights, working = artefact.layout.image_bytes, wanted.spec.resources.working_memory_bytes
    misfit = placement.misfit(weights, working, placing.node_views(nodes, reports)) if nodes else None
    if misfit is not None:
        raise FailedPrecondition("MODEL_TOO_LARGE", f"function '{name}' fits nowhere: {misfit}", function=name)
    function, is_new = _own(unit, wanted, now)
    if function.state != "ACTIVE":
        raise FailedPrecondition(
            "FUNCTION_DELETING", f"function '{name}' is being deleted; deploy it when that is done",
            retry_after_s=RETRY_AFTER_S, function=name,
        )  # fmt: skip
    _check_pins(unit, wanted, placing.node_views(nodes, reports))
    stored = unit.functions.store_artefact(rows.artefact_columns(artefact, now))
    if stored.deleting:
        raise FailedPrecondition(
            "ARTEFACT_NOT_FOUND", f"artefact {artefact.digest} is being deleted with its last function; deploy again",
            retry_after_s=RETRY_AFTER_S, function=name, artefact=artefact.digest,
        )  # fmt: skip
    assign(unit, stored, name)
    found, is_repeated = (None, False) if is_new else _found(function, wanted)
    version = found or unit.functions.add_version(
        function, uuid.uuid4().hex, stored, rows.spec_columns(wanted.spec), now, wanted.deployment_id
    )
    # The first version has all traffic: there is nothing else that could.
    gets_traffic = not is_new and not wanted.without_traffic and not is_repeated
    if gets_traffic and shares.assign(function, {version.version: shares.WHOLE}):
        unit.routing_changed = True
    if found is None:
        unit.routing_changed = True
        words = f"version {version.version}, artefact {artefact.digest[:12]}, {placement.mib(weights)} of weights"
        words += "; without traffic" if wanted.without_traffic and not is_new else ""
        unit.record(now, "function.deployed", name, words)
        LOG.info("deployed function=%s version=%d new=%s artefact=%s", name, version.version, is_new, artefact.digest)
    return cluster.CreateVersionResponse(
        version=rows.version_message(version), unchanged=found is not None and not is_repeated
    )


def _own(unit: Unit, wanted: _Wanted, now: datetime) -> tuple[Function, bool]:
    """The function, locked, and whether it was made just now; the tenant may deploy it and has what it refers to."""
    name, tenant = wanted.spec.name, wanted.tenant
    if unit.access.hold_tenant(tenant) is None:
        raise rules.no_tenant(tenant)
    function, is_new = unit.functions.ensure(uuid.uuid4().hex, name, now, tenant)
    if function.tenant != tenant:
        raise AlreadyExists("NAME_TAKEN", f"the name '{name}' is taken in this mesh; choose another one", function=name)
    check_references(unit, tenant, wanted.spec)
    return function, is_new


def _check_pins(unit: Unit, wanted: _Wanted, nodes: tuple[placement.NodeView, ...]) -> None:
    """Raises FailedPrecondition PIN_TOO_LARGE where pinned weights would leave no room for the largest function."""
    name = wanted.spec.name
    working = wanted.spec.resources.working_memory_bytes
    every = [placement.Weights(wanted.artefact.layout.image_bytes, working, wanted.spec.pinned)]
    for function in unit.functions.all():
        if function.name == name or function.state != "ACTIVE":
            continue
        for row in (function.active, *shares.beside_active(function)):
            spec = rows.version_message(row).spec
            working = spec.resources.working_memory_bytes
            every.append(placement.Weights(row.artefact.weights_bytes, working, spec.pinned))
    misfit = placement.pin_misfit(every, nodes)
    if misfit is not None:
        raise FailedPrecondition("PIN_TOO_LARGE", f"function '{name}' cannot be deployed: {misfit}", function=name)


def _found(function: Function, wanted: _Wanted) -> tuple[Version | None, bool]:
    """The version that is there already in place of the wanted one, and whether this very deployment made it."""
    for version in function.versions:
        if wanted.deployment_id and version.deployment_id == wanted.deployment_id:
            return version, True
    if wanted.only_if_changed:
        columns = rows.spec_columns(wanted.spec)
        for version in (function.active, function.versions[-1]):
            if version.artefact_digest == wanted.artefact.digest and version.spec == columns:
                return version, False
    return None, False


def summary(function: Function, of_active: list[Instance], tapes: Mapping[str, int]) -> functions.FunctionSummary:
    """A function, told with the instances of its active version, and with how many tapes there are by version."""
    views, count = [rows.instance_view(row) for row in of_active], tapes.get(function.active.version_id, 0)
    state, reason = function_state(function.state == "DELETING", views, count)
    return functions.FunctionSummary(
        name=function.name,
        state=state,
        reason=reason,
        active_version=rows.version_message(function.active),
        ready_instances=sum(row.state == "READY" for row in of_active),
        traffic=shares.messages(function),
        tenant=function.tenant,
    )


def _describe(unit: Unit, name: str, reports: placing.Reports) -> cluster.GetFunctionResponse:
    function = unit.functions.find(clean(name))
    if function is None:
        raise not_found(name)
    ids = {version.version_id for version in function.versions}
    instances = unit.instances.of_function(function.function_id)
    residency = [
        rows.residency_message(row) for row in unit.nodes.placements(version_ids=ids) if row.node_id not in reports
    ]
    for node_id in sorted(reports):
        residency += [entry for entry in reports[node_id].residency if entry.version_id in ids]
    return cluster.GetFunctionResponse(
        function=summary(
            function,
            [row for row in instances if row.version_id == function.active.version_id],
            counts(reports.values()),
        ),
        versions=[rows.version_message(version) for version in function.versions],
        instances=[rows.instance_message(row) for row in instances],
        residency=residency,
        usage=rows.usage_message(unit.usage.total(name, ids)),
        events=[rows.event_message(event) for event in unit.events.newest(name, SHOWN_EVENTS)],
    )  # fmt: skip
