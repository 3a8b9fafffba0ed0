"""Calls to the node-routers: serialised in, serialised out, over one link an address."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing

from rouse_common.errors import RouseError, Unavailable
from rouse_common.link import Buffer, Links
from rouse_contracts.links import INFER
from rouse_policy.routing import Candidate

METHOD = INFER.encode()
# The link broke, or the node-router stopped before it answered.
LOST = ("LINK_LOST", "UNAVAILABLE")


class NotExecuted(Unavailable):
    """The node surely did not execute the request; it may go elsewhere."""


class Nodes:
    """NodeService.Infer of every node. Requests are parts of a serialised InferRequest, responses serialised
    InferResponses.

    What is called raises NotExecuted where the request surely did not run; Unavailable NODE_LOST where the
    connection broke after sending; else what the node answered. Cancelling it cancels the call.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        # By address; of those that were ever called and are still wanted.
        self._in_flight: Counter[str] = Counter()

    def in_flight(self, candidates: Iterable[Candidate], addresses: Mapping[str, str]) -> dict[str, int]:
        """Calls from here that are not answered yet, by node id, of nodes that were ever called."""
        return {
            candidate.node_id: self._in_flight[address]
            for candidate in candidates
            if (address := addresses[candidate.node_id]) in self._in_flight
        }

    async def infer(self, address: str, request: Sequence[Buffer], timeout_s: float) -> Buffer:
        """The one response of an ordinary function."""
        self._in_flight[address] += 1
        try:
            return await self._links.call(address, METHOD, request, timeout_s)
        except RouseError as error:
            raise classify(error, address) from None
        finally:
            self._in_flight[address] -= 1

    async def stream(self, address: str, request: Sequence[Buffer], timeout_s: float) -> AsyncGenerator[Buffer, None]:
        """The responses of a decoupled function, as they come."""
        self._in_flight[address] += 1
        try:
            async with aclosing(self._links.stream(address, METHOD, request, timeout_s)) as responses:
                async for response in responses:
                    yield response
        except RouseError as error:
            raise classify(error, address) from None
        finally:
            self._in_flight[address] -= 1

    async def prune(self, wanted: Collection[str]) -> None:
        """Closes the links to addresses that are not wanted and that nothing is in flight on."""
        for address in [a for a, count in self._in_flight.items() if a not in wanted and not count]:
            del self._in_flight[address]
            await self._links.forget(address)


def classify(error: RouseError, address: str) -> RouseError:
    """Tells errors after which the request surely did not run from those after which it may have."""
    if not isinstance(error, Unavailable):
        return error
    if error.reason == "NO_INSTANCE":
        return NotExecuted(error.reason, error.message, retry_after_s=error.retry_after_s, **error.metadata)
    if error.reason == "NOT_CONNECTED":
        return NotExecuted("NODE_UNREACHABLE", f"cannot connect to the node-router at {address}: {error.message}")
    if error.reason in LOST:
        return Unavailable(
            "NODE_LOST",
            f"the connection to the node-router at {address} broke after the request was sent ({error.message}); "
            "the request may have run: repeat it only if that does no harm",
        )
    return error  # the node itself said what happened
