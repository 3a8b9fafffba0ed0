"""Functions and their versions."""

from __future__ import annotations

import logging
import re
import uuid

from rouse_cluster_manager import placing, specs
from rouse_cluster_manager.adapters import rows
from rouse_cluster_manager.adapters.neighbours import Neighbours
from rouse_cluster_manager.fleet import Fleet
from rouse_cluster_manager.state import at, function_state
from rouse_common.clock import Clock
from rouse_common.errors import FailedPrecondition, InvalidArgument, NotFound, RouseError
from rouse_common.locks import KeyedLocks
from rouse_contracts import cluster, functions, repository
from rouse_policy import placement
from rouse_store import Database, Unit
from rouse_store.models import DIGEST_PATTERN, Function, Instance
from rouse_store.text import clean

LOG = logging.getLogger(__name__)
SHOWN_EVENTS = 20
DIGEST = re.compile(DIGEST_PATTERN)
RETRY_AFTER_S = 1.0


class Catalogue:
    """Args:
    artefact_locks: by digest; an artefact is neither taken into use while it is being deleted nor the
        other way round.
    """

    def __init__(
        self, database: Database, neighbours: Neighbours, fleet: Fleet, artefact_locks: KeyedLocks, clock: Clock
    ) -> None:
        self._database, self._neighbours, self._fleet = database, neighbours, fleet
        self._locks, self._clock = artefact_locks, clock

    async def create_version(self, spec: functions.FunctionSpec, digest: str) -> functions.FunctionVersion:
        """Makes the function or one more version of it; see the contract for the errors."""
        specs.check_name(spec.name)
        if not DIGEST.fullmatch(digest):
            raise InvalidArgument(
                "BAD_DIGEST", f"artefact '{clean(digest, 80)}': want 64 hex digits", function=spec.name
            )
        async with self._locks.holding(digest):
            artefact = await self._neighbours.artefact(digest)
            try:
                full = specs.effective(spec, artefact)
                reports, now = self._fleet.reports(), self._clock.now()
                return await self._database.run(lambda unit: _create_version(unit, full, artefact, reports, now))
            except (InvalidArgument, FailedPrecondition) as error:
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

    async def listed(self) -> list[functions.FunctionSummary]:
        """Functions in the order of names."""

        def work(unit: Unit) -> list[functions.FunctionSummary]:
            by_version: dict[str, list[Instance]] = {}
            for row in unit.instances.live_and_latest():
                by_version.setdefault(row.version_id, []).append(row)
            return [_summary(f, by_version.get(f.active.version_id, [])) for f in unit.functions.all()]

        return await self._database.run(work, isolation="REPEATABLE READ")


def not_found(name: str) -> NotFound:
    return NotFound(
        "FUNCTION_NOT_FOUND", f"there is no function '{clean(name, 140)}'; `rouse functions` lists them", function=name
    )


def _create_version(
    unit: Unit, spec: functions.FunctionSpec, artefact: repository.Artefact, reports: placing.Reports, time: float
) -> functions.FunctionVersion:
    now, name = at(time), spec.name
    nodes = unit.nodes.all()
    weights, working = artefact.layout.image_bytes, spec.resources.working_memory_bytes
    misfit = placement.misfit(weights, working, placing.node_views(nodes, reports)) if nodes else None
    if misfit is not None:
        raise FailedPrecondition("MODEL_TOO_LARGE", f"function '{name}' fits nowhere: {misfit}", function=name)
    function, is_new = unit.functions.ensure(uuid.uuid4().hex, name, now)
    if function.state != "ACTIVE":
        raise FailedPrecondition(
            "FUNCTION_DELETING", f"function '{name}' is being deleted; deploy it when that is done",
            retry_after_s=RETRY_AFTER_S, function=name,
        )  # fmt: skip
    stored = unit.functions.store_artefact(rows.artefact_columns(artefact, now))
    if stored.deleting:
        raise FailedPrecondition(
            "ARTEFACT_NOT_FOUND", f"artefact {artefact.digest} is being deleted with its last function; deploy again",
            retry_after_s=RETRY_AFTER_S, function=name, artefact=artefact.digest,
        )  # fmt: skip
    version = unit.functions.add_version(function, uuid.uuid4().hex, stored, rows.spec_columns(spec), now)
    unit.routing_changed = True
    words = f"version {version.version}, artefact {artefact.digest[:12]}, {placement.mib(weights)} of weights"
    unit.record(now, "function.deployed", name, words)
    LOG.info("deployed function=%s version=%d new=%s artefact=%s", name, version.version, is_new, artefact.digest)
    return rows.version_message(version)


def _summary(function: Function, of_active: list[Instance]) -> functions.FunctionSummary:
    state, reason = function_state(function.state == "DELETING", [rows.instance_view(row) for row in of_active])
    return functions.FunctionSummary(
        name=function.name,
        state=state,
        reason=reason,
        active_version=rows.version_message(function.active),
        ready_instances=sum(row.state == "READY" for row in of_active),
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
    usage = unit.usage.total(name, ids)
    return cluster.GetFunctionResponse(
        function=_summary(function, [row for row in instances if row.version_id == function.active.version_id]),
        versions=[rows.version_message(version) for version in function.versions],
        instances=[rows.instance_message(row) for row in instances],
        residency=residency,
        usage=functions.UsageSummary(
            requests=usage.requests, failures=usage.failures, device_ms=usage.device_ms, swap_ins=usage.swap_ins,
            swap_ms=usage.swap_ms,
        ),
        events=[rows.event_message(event) for event in unit.events.newest(name, SHOWN_EVENTS)],
    )  # fmt: skip
