"""An inference as it is asked for, what it is answered, and who serves it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from rouse_contracts.functions import RequestOptions, Timings
from rouse_gateway.state import Version
from rouse_gateway.wire import TensorView


class Call(NamedTuple):
    """An inference as a client asked for it.

    Args:
        function, number: the function, and its version ("" is the active one).
        inputs: its tensors, not checked yet.
        output_names: outputs wanted; empty: all.
        timeout_s: seconds until the client's deadline.
        tenant, tenant_weight: whose request it is, and the tenant's share beside others.
        options: what the function and the queues are told beside the tensors.
        idempotency_key: requests with one key are one request; empty: none.
    """

    function: str
    number: str
    inputs: Sequence[TensorView]
    output_names: Sequence[str]
    timeout_s: float
    tenant: str = ""
    tenant_weight: int = 1
    options: RequestOptions | None = None
    idempotency_key: str = ""


class Answer(NamedTuple):
    """What a node answered, with the way it took."""

    version: Version
    outputs: list[TensorView]
    timings: Timings
    request_id: str
    node_id: str
    device: str


class Serves(Protocol):
    """What those who read requests need of who serves them: a Dispatcher, or the FrontDoor before it."""

    async def infer(self, call: Call) -> Answer: ...

    def stream(self, call: Call) -> AsyncGenerator[Answer, None]: ...

    async def wake(self, function: str, number: str, timeout_s: float) -> None: ...
