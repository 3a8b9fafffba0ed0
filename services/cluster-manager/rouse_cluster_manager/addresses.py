"""An artefact is given its virtual addresses once; where they lie is the policy's choice (rouse_policy.addresses)."""

from __future__ import annotations

import logging

from rouse_common.errors import ResourceExhausted
from rouse_policy import addresses
from rouse_store import Unit
from rouse_store.models import Artefact

LOG = logging.getLogger(__name__)


def assign(unit: Unit, artefact: Artefact, function: str) -> None:
    """Sees to it that an artefact, whose row is locked, has a range. Raises ResourceExhausted ADDRESSES_EXHAUSTED."""
    if unit.addresses.of(artefact) is not None:
        return
    taken = tuple(addresses.Extent(row.base, row.size_bytes) for row in unit.addresses.hold())
    snapshot = addresses.Snapshot(taken, artefact.weights_bytes)
    decision, _ = addresses.decide(snapshot, addresses.State(), addresses.Settings(), 0.0)
    regions = decision.regions
    if decision.base is None:
        raise ResourceExhausted(
            "ADDRESSES_EXHAUSTED",
            f"function '{function}' cannot be deployed: {decision.reason}; delete functions that are not used",
            function=function,
            artefact=artefact.digest,
        )
    unit.addresses.give(
        artefact, decision.base, regions.weights_bytes, regions.state_bytes, regions.scratch_bytes
    )  # fmt: skip
    LOG.info("addresses artefact=%s base=%#x reason=%s", artefact.digest, decision.base, decision.reason)
