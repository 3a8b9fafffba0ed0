"""Which requests go to a tape before they go to an instance."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from rouse_contracts import node, tapes, views
from rouse_contracts.wire import Buffer
from rouse_node_router.adapters.devices import Lease, Tapes
from rouse_node_router.tickets import Ticket


def key_of(request: node.InferRequest, inputs: Buffer) -> str:
    """The key of the tapes that are to answer a request without an instance; empty where an instance has to."""
    if not request.tapes_only or request.decoupled or request.options.sequence.id:
        return ""
    try:
        return tapes.key(views.parse_batch(inputs))
    except DecodeError:
        return ""


def tapes_for(lease: Lease, members: Sequence[Ticket]) -> Tapes | None:
    """The tapes of a lease, where one may answer these requests, executed together; None where only the instance does.

    A sequence is the instance's: it may know more of it than the tensors say.
    """
    first = members[0]
    if lease.tapes is None or first.instance_id or first.request.options.sequence.id or first.request.decoupled:
        return None
    try:
        inputs = views.parse_batch(first.inputs)
    except DecodeError:
        return None
    if len(members) > 1:
        rows = sum(ticket.rows for ticket in members)
        inputs = [tensor._replace(shape=(rows, *tensor.shape[1:])) for tensor in inputs]
    return lease.tapes if tapes.key(inputs) in lease.tapes.keys else None
