"""The node's gpu-server: leases on devices, taken while a request waits and given back in the background."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from rouse_common.errors import Internal, RouseError, Unavailable
from rouse_common.link import Buffer, Links
from rouse_common.rpc import Channels, call
from rouse_contracts import device as contract
from rouse_contracts.links import ACQUIRE, RELEASE
from rouse_node_router import metrics

LOG = logging.getLogger(__name__)
ACQUIRE_METHOD, RELEASE_METHOD = ACQUIRE.encode(), RELEASE.encode()

# A gpu-server that is restarted is back within seconds; requests wait for it that long.
REACH_S = 5.0
# Where tapes are to answer, the instance that would be woken instead needs gpu-server all the same.
TAPES_REACH_S = 30.0
RELEASE_TIMEOUT_S = 2.0
RELEASE_TRIES = 5
RELEASE_PAUSE_S = 0.5
MAX_RELEASES = 10_000
# What a call ends with that gpu-server did not answer.
UNANSWERED = ("LINK_LOST", "UNAVAILABLE", "DEADLINE_EXCEEDED")


@dataclass(frozen=True, slots=True)
class Tapes:
    """What answers requests without the instance.

    Args:
        link: of the device's executor.
        lease_id: as that executor knows the lease.
        keys: of the requests that have a tape (rouse_contracts.tapes.key).
    """

    link: str
    lease_id: str
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to have requests of a version executed, until monotonic second `until`. Without an executor's address
    tapes answer, or nobody; it was asked for requests of the kind `tape_key` then."""

    version_id: str
    lease_id: str
    executor_address: str
    device: str
    swap_ms: float
    swapped_in: bool
    instance_id: str = ""
    tapes: Tapes | None = None
    until: float = math.inf
    tape_key: str = ""


class Devices:
    """Leases of this router. Its background work belongs to the given task group.

    Args:
        channels: where the channel to gpu-server is kept.
        links: where the link to it is kept.
        address, link: of gpu-server's gRPC server and of its link.
        owner: node id.
        incarnation: new at each start of the router.
        tasks: the group that releases run in.
    """

    def __init__(
        self,
        channels: Channels,
        links: Links,
        address: str,
        link: str,
        owner: str,
        incarnation: str,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._stub = contract.DeviceServiceStub(channels.get(address))
        self._links, self._link = links, link
        self._owner, self._incarnation = owner, incarnation
        self._tasks = tasks
        self._numbers = itertools.count()
        self._releases: set[asyncio.Task[None]] = set()

    async def acquire(
        self,
        version_id: str,
        request_id: str,
        timeout_s: float,
        hold_s: float,
        instance_id: str = "",
        tenant: str = "",
        weight: int = 1,
        tape_key: str = "",
    ) -> Lease:
        """Waits `timeout_s` at most for a device that holds the version; the lease may be kept for `hold_s`
        from now on. With an instance only that one will do; with the key of tapes one of those,
        and no instance. It counts towards the tenant's share of the devices.

        Raises what DeviceService.Acquire documents; Unavailable GPU_SERVER_AWAY where nobody answers,
        GPU_SERVER_LOST where it went away meanwhile. However this ends, cancellation included, a lease that
        was granted and is not returned goes back.
        """
        acquire_id = f"{self._incarnation}-{next(self._numbers)}"
        request = contract.AcquireRequest(
            version_id=version_id,
            request_id=request_id,
            owner=self._owner,
            incarnation=self._incarnation,
            acquire_id=acquire_id,
            hold_s=hold_s,
            instance_id=instance_id,
            tenant=tenant,
            tenant_weight=weight,
            tape_key=tape_key,
        )
        try:
            granted = contract.AcquireResponse.FromString(
                await self._ask(request.SerializeToString(), timeout_s, TAPES_REACH_S if tape_key else REACH_S)
            )
        except asyncio.CancelledError:
            self._give_back(contract.ReleaseRequest(acquire_id=acquire_id))
            raise
        except DecodeError as error:
            self._give_back(contract.ReleaseRequest(acquire_id=acquire_id))
            raise Internal("BAD_ANSWER", f"gpu-server answered with what is no AcquireResponse: {error}") from None
        except RouseError as error:
            # It is not gpu-server that refused: a grant may be lost on the way.
            if error.reason in UNANSWERED:
                self._give_back(contract.ReleaseRequest(acquire_id=acquire_id))
            if isinstance(error, Unavailable) and error.reason in UNANSWERED:
                raise Unavailable("GPU_SERVER_LOST", f"gpu-server at {self._link} went away: {error}") from None
            raise
        return Lease(
            version_id, granted.lease_id, granted.executor_address, granted.device, granted.swap_ms, granted.swapped_in,
            granted.instance_id, _tapes(granted), tape_key=tape_key,
        )  # fmt: skip

    async def _ask(self, request: bytes, timeout_s: float, reach_s: float) -> bytes:
        """Acquire as it is. One that found no connection was not sent: it waits for gpu-server, `reach_s` seconds at
        most, and goes again."""
        until = asyncio.get_running_loop().time() + timeout_s
        try:
            return bytes(await self._links.call(self._link, ACQUIRE_METHOD, (request,), timeout_s))
        except Unavailable as error:
            if error.reason != "NOT_CONNECTED":
                raise
        if await self._links.connected(self._link, min(timeout_s, reach_s), patient=True):
            left_s = until - asyncio.get_running_loop().time()
            try:
                return bytes(await self._links.call(self._link, ACQUIRE_METHOD, (request,), left_s))
            except Unavailable as error:
                if error.reason != "NOT_CONNECTED":
                    raise
        raise Unavailable("GPU_SERVER_AWAY", f"gpu-server at {self._link} does not answer; is it running?")

    def release(self, lease: Lease, device_ms: float, *, abandoned: bool, requests: int = 1, replays: int = 0) -> None:
        """Gives a device back, without waiting for it.

        Args:
            lease: the lease; not to be used any more.
            device_ms: milliseconds that the executor worked.
            abandoned: whether the executor may still be at work.
            requests: how many were executed under the lease.
            replays: how many of them tapes answered.
        """
        self._give_back(
            contract.ReleaseRequest(
                lease_id=lease.lease_id, device_ms=device_ms, abandoned=abandoned, requests=requests, replays=replays
            )
        )

    async def release_all(self, timeout_s: float) -> int:
        """Frees what earlier incarnations of this router left behind; how many leases. Raises RouseError."""
        request = contract.ReleaseAllRequest(owner=self._owner, incarnation=self._incarnation)
        answer = await call(self._stub.ReleaseAll, request, timeout_s=timeout_s)
        return int(answer.released)

    async def released(self, timeout_s: float) -> None:
        """Waits until everything is given back, `timeout_s` seconds at most."""
        if self._releases:
            _, pending = await asyncio.wait(self._releases, timeout=timeout_s)
            for task in pending:
                task.cancel()

    def _give_back(self, request: contract.ReleaseRequest) -> None:
        if len(self._releases) >= MAX_RELEASES:
            metrics.RELEASES_DROPPED.inc()
            LOG.warning("lease left to expire, too many wait for gpu-server lease=%s", request.lease_id)
            return
        task = self._tasks.create_task(self._release(request))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, request: contract.ReleaseRequest) -> None:
        message: list[Buffer] = [request.SerializeToString()]
        for attempt in range(1, RELEASE_TRIES + 1):
            try:
                await self._links.call(self._link, RELEASE_METHOD, message, RELEASE_TIMEOUT_S)
                return
            except RouseError as error:
                # Releasing twice succeeds, so whatever went wrong, it may be tried again.
                if attempt == RELEASE_TRIES:
                    metrics.RELEASES_DROPPED.inc()
                    LOG.warning(
                        "lease left to expire after %d tries lease=%s error=%s", attempt, request.lease_id, error
                    )
                    return
            await asyncio.sleep(RELEASE_PAUSE_S * attempt)


def _tapes(granted: contract.AcquireResponse) -> Tapes | None:
    if not granted.HasField("tapes"):
        return None
    return Tapes(granted.tapes.link, granted.tapes.lease_id, frozenset(granted.tapes.keys))
