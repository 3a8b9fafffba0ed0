"""Calls to the node-routers: serialised in, serialised out, one link an address."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rouse_common.errors import Cancelled, RouseError, Unavailable
from rouse_common.rpc import Channels, call
from rouse_policy.routing import Candidate

INFER = "/rouse.node.v1.NodeService/Infer"
# How gRPC's core says that it could open no connection, so that nothing was sent.
NEVER_CONNECTED = "failed to connect to all addresses"


class NotExecuted(Unavailable):
    """The node surely did not execute the request; it may go elsewhere."""


class _Link:
    def __init__(self, method: Any) -> None:
        self.method = method
        self.in_flight = 0


class Nodes:
    """Links to node-routers. Their number is bounded by the nodes of the mesh; `prune` drops those gone."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._links: dict[str, _Link] = {}

    def in_flight(self, candidates: Iterable[Candidate], addresses: Mapping[str, str]) -> dict[str, int]:
        """Calls from here that are not answered yet, by node id, of nodes that were ever called."""
        return {
            candidate.node_id: link.in_flight
            for candidate in candidates
            if (link := self._links.get(addresses[candidate.node_id])) is not None
        }

    async def infer(self, address: str, request: bytes, timeout_s: float) -> bytes:
        """NodeService.Infer with a serialised InferRequest, answered with a serialised InferResponse.

        Raises NotExecuted where the request surely did not run; Unavailable NODE_LOST where the connection
        broke after sending; else what the node answered. Cancelling it cancels the call.
        """
        link = self._links.get(address)
        if link is None:
            # Bytes as they are: without a serialiser gRPC passes them on.
            link = self._links[address] = _Link(self._channels.get(address).unary_unary(INFER))
        link.in_flight += 1
        try:
            answer: bytes = await call(link.method, request, timeout_s=timeout_s)
            return answer
        except RouseError as error:
            raise classify(error, address) from None
        finally:
            link.in_flight -= 1

    async def prune(self, wanted: Collection[str]) -> None:
        """Closes the links to addresses that are not wanted and that nothing is in flight on."""
        for address in [a for a, link in self._links.items() if a not in wanted and not link.in_flight]:
            del self._links[address]
            await self._channels.forget(address)


def classify(error: RouseError, address: str) -> RouseError:
    """Tells errors after which the request surely did not run from those after which it may have."""
    if isinstance(error, Unavailable) and error.reason == "NO_INSTANCE":
        return NotExecuted(error.reason, error.message, retry_after_s=error.retry_after_s, **error.metadata)
    if not isinstance(error, Unavailable | Cancelled) or error.reason != error.code.name:
        return error  # the node itself said what happened
    if error.message.startswith(NEVER_CONNECTED):
        return NotExecuted("NODE_UNREACHABLE", f"cannot connect to the node-router at {address}: {error.message}")
    return Unavailable(
        "NODE_LOST",
        f"the connection to the node-router at {address} broke after the request was sent ({error.message}); "
        "the request may have run: repeat it only if that does no harm",
    )
