"""A request in the queues: where it is, and how it ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from rouse_contracts import node
from rouse_contracts.wire import Buffer
from rouse_node_router import batches
from rouse_policy import batching, fairness

if TYPE_CHECKING:
    from rouse_node_router.carriers import Grant
    from rouse_node_router.versions import VersionQueue


class Phase(Enum):
    """Where a request is."""

    # Members are equal where they are the same; Enum's own hash is a call of Python at every look-up.
    __hash__ = object.__hash__

    QUEUED = "QUEUED"
    # In no order with others: its task acts on what it was told, or asks for a certain instance or for tapes.
    APART = "APART"
    EXECUTING = "EXECUTING"
    LEFT = "LEFT"


class Outcome(Enum):
    """How a request ended."""

    __hash__ = object.__hash__

    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    REFUSED = "refused"


MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.EXECUTING, Phase.APART, Phase.LEFT}),
    Phase.APART: frozenset({Phase.QUEUED, Phase.EXECUTING, Phase.LEFT}),
    Phase.EXECUTING: frozenset({Phase.APART, Phase.LEFT}),
    Phase.LEFT: frozenset(),
}


@dataclass(eq=False, slots=True)
class Ticket:
    """One request in the queues. Times are monotonic seconds.

    Attributes:
        request, inputs: what came; the inputs as they were received.
        turn: done when it holds a device, or is told that it will not.
        rows: its part of a batch; 1 where the function has none.
        batchable: whether it may share one.
        instance_id: the only instance that will do; empty: any.
        tape_key: of the tapes that are to answer it without an instance; empty: an instance has to be there.
        context: of its task, so that what is done for it belongs to its trace.
        tenant, weight: the request's.
    """

    queue: VersionQueue
    request: node.InferRequest
    inputs: Buffer
    arrived: float
    deadline: float
    turn: asyncio.Future[Grant]
    phase: Phase = Phase.QUEUED
    level: int = fairness.MIDDLE
    rows: int = 1
    batchable: bool = False
    instance_id: str = ""
    tape_key: str = ""
    charged: bool = False
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    tenant: str = field(init=False)
    weight: int = field(init=False)
    _waiting: batching.Waiting | None = None

    def __post_init__(self) -> None:
        self.tenant, self.weight = self.request.tenant, max(1, self.request.tenant_weight)

    @property
    def asks_itself(self) -> bool:
        """Whether its own task asks for its lease, which is for nobody else."""
        return bool(self.instance_id or self.tape_key)

    @property
    def waiting(self) -> batching.Waiting:
        """What the batching policy has to know of it; its kind is found out when it is first needed."""
        if self._waiting is None:
            kind: Hashable = batches.kind(self.request, self.inputs) if self.batchable else None
            self._waiting = batching.Waiting(self.rows, len(self.inputs), kind, self.arrived, self.deadline)
        return self._waiting
