"""Acquire and Release: the bounded wait for a device, its deadline and cancellation, and its spans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.trace import SpanKind, Status, StatusCode

from rouse_common import telemetry
from rouse_common.clock import Clock
from rouse_common.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    ResourceExhausted,
    RouseError,
    Unimplemented,
)
from rouse_common.telemetry import TRACER
from rouse_contracts import specs
from rouse_gpu_server import metrics
from rouse_gpu_server.logic.dispatcher import Dispatcher, instance_gone, no_executor, no_tape
from rouse_gpu_server.logic.recordings import Recordings
from rouse_gpu_server.logic.weighing import Weighing
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import CUDA, Lease, Model, Swap
from rouse_gpu_server.state.waiting import Waiter
from rouse_gpu_server.state.wakeup import Wakeup

# The answer still has to reach the caller before its own deadline.
ANSWER_MARGIN_S = 0.005
RETRY_S = 0.5
# So much longer than it waits for it may a caller keep a lease.
MAX_HOLD_S = 3600.0
# A rest of waiting after a swap shorter than this is no span of its own.
SHORT_S = 0.0005


@dataclass(frozen=True)
class Call:
    """An Acquire as its caller made it."""

    version_id: str
    request_id: str
    owner: str
    incarnation: str
    acquire_id: str = ""
    hold_s: float = 0.0
    instance_id: str = ""
    tape_key: str = ""
    tenant: str = ""
    weight: int = 1


@dataclass(frozen=True)
class Granted:
    """A lease and where the time went, in milliseconds."""

    lease: Lease
    wait_ms: float
    swap_ms: float
    swapped_in: bool
    reason: str


class Leasing:
    """Grants and takes back the right to compute.

    Args:
        has_tapes: whether the node has tapes of a version for requests of a kind.
    """

    def __init__(
        self,
        pool: Pool,
        dispatcher: Dispatcher,
        wakeup: Wakeup,
        clock: Clock,
        recordings: Recordings,
        has_tapes: Callable[[Model, str], bool],
        weighing: Weighing,
    ) -> None:
        self._pool, self._dispatcher, self._wakeup, self._clock = pool, dispatcher, wakeup, clock
        self._recordings, self._has_tapes, self._weighing = recordings, has_tapes, weighing
        self._stopping: RouseError | None = None

    async def acquire(self, call: Call, timeout_s: float) -> Granted:
        """Waits for a device that holds the version and is free to compute.

        Raises Unavailable NO_EXECUTOR | NO_TAPE, FailedPrecondition MODEL_TOO_LARGE, ResourceExhausted
        DEVICE_WAIT_FULL, DeadlineExceeded DEVICE_WAIT_TIMEOUT, or what made its swap fail. However it ends,
        it leaves nothing behind.
        """
        waiter = self._enter(call, timeout_s)
        error: BaseException | None = None
        try:
            async with asyncio.timeout(max(0.0, timeout_s - ANSWER_MARGIN_S)):
                lease = await waiter.outcome
        except TimeoutError:
            self._leave(waiter)
            error = self._too_late(waiter, timeout_s)
            raise error from None
        except BaseException as failure:
            self._leave(waiter)
            error = failure
            raise
        finally:
            granted = self._account(waiter, error)
        assert granted is not None
        assert granted.lease is lease
        return granted

    def _enter(self, call: Call, timeout_s: float) -> Waiter:
        version_id = call.version_id
        if self._stopping is not None:
            raise self._stopping
        model = self._pool.models.get(version_id)
        if self._pool.synced:
            if model is None or model.dropping or not (call.tape_key or self._pool.serves(version_id)):
                raise self._refused("no_executor", no_executor(version_id))
            if call.tape_key and not (model.artefact.on_disk and self._has_tapes(model, call.tape_key)):
                raise self._refused("no_tape", no_tape(version_id, "there is none"))
            if call.instance_id and not self._pool.is_alive(call.instance_id):
                raise self._refused("no_executor", instance_gone(call.instance_id, version_id))
            if (error := misfit(self._pool, model)) is not None:
                raise self._refused("misfit", error)
        if self._pool.waiting.full:
            count = len(self._pool.waiting)
            text = f"{count} requests wait for a device already; try again later or raise --max-waiting"
            raise self._refused("full", ResourceExhausted("DEVICE_WAIT_FULL", text, retry_after_s=RETRY_S))
        now = self._clock.monotonic()
        if model is not None:
            model.note_arrival(now)
            if model.size_bytes and not self._pool.residents_of(version_id):
                metrics.CACHE_MISS.labels(model.function).inc()
        waiter = Waiter(
            ticket=self._pool.waiting.next_ticket(),
            version_id=version_id,
            request_id=call.request_id,
            acquire_id=call.acquire_id,
            owner=call.owner,
            incarnation=call.incarnation,
            arrived=now,
            deadline=now + timeout_s,
            hold_until=now + min(max(timeout_s, call.hold_s), timeout_s + MAX_HOLD_S),
            instance_id=call.instance_id,
            tape_key=call.tape_key,
            arrived_at=self._clock.now(),
            outcome=asyncio.get_running_loop().create_future(),
            swaps_before=model.swaps_ended if model is not None else 0,
            tenant=call.tenant,
            weight=max(1, call.weight),
        )
        self._pool.waiting.add(waiter)
        self._wakeup.kick()
        return waiter

    def _refused(self, outcome: str, error: RouseError) -> RouseError:
        metrics.ACQUIRES.labels(outcome).inc()
        return error

    def _leave(self, waiter: Waiter) -> None:
        """Takes a request out of wherever it is; a lease that it got just now goes back unused."""
        self._pool.waiting.remove(waiter)
        outcome = waiter.outcome
        if not outcome.done():
            outcome.cancel()
        elif not outcome.cancelled() and outcome.exception() is None:
            self._dispatcher.release(outcome.result(), "nobody waits for it any more")
        self._wakeup.kick()

    def _too_late(self, waiter: Waiter, timeout_s: float) -> DeadlineExceeded:
        model = self._pool.models.get(waiter.version_id)
        name = model.function if model is not None else waiter.version_id
        return DeadlineExceeded(
            "DEVICE_WAIT_TIMEOUT",
            f"no device became free for function {name} within {timeout_s * 1000:.0f} ms; "
            f"{len(self._pool.waiting)} requests wait",
            function=name,
        )

    # ---- what became of it ----

    def _account(self, waiter: Waiter, error: BaseException | None) -> Granted | None:
        """Metrics and spans of a wait that is over."""
        ended = self._clock.now()
        model = self._pool.models.get(waiter.version_id)
        lease = waiter.outcome.result() if error is None else None
        swaps = [
            swap
            for swap in (model.swaps if model is not None else ())
            if swap.number > waiter.swaps_before and (lease is None or swap.device == lease.device_name)
        ]
        swap_s = sum(min(s.ended, ended) - max(s.started, waiter.arrived_at) for s in swaps)
        _spans(waiter, swaps, ended, error, lease)
        outcome = "granted" if error is None else type(error).__name__
        metrics.ACQUIRES.labels(outcome).inc()
        if lease is None:
            return None
        total_s = ended - waiter.arrived_at
        metrics.WAIT.observe(total_s)
        swapped_in = any(not swap.error for swap in swaps)
        reason = waiter.reason + (f"; swapped in {swaps[-1].reason}" if swapped_in else "")
        return Granted(lease, max(0.0, total_s - swap_s) * 1000, swap_s * 1000, swapped_in, reason)

    # ---- giving back ----

    def release(self, lease_id: str, device_ms: float, abandoned: bool, requests: int = 1, replays: int = 0) -> None:
        """Gives a device back, under which so many requests were executed, some of them by tapes. Unknown leases have
        ended already."""
        lease = self._pool.leases.get(lease_id)
        if lease is None:
            return
        if device_ms > 0:
            metrics.DEVICE_BUSY.labels(lease.device_name).inc(device_ms / 1000)
        if requests > 1:
            lease.model.note_arrival(self._clock.monotonic(), requests - 1)
        lease.model.replays += replays
        if replays < requests and not abandoned and lease.executor.is_instance:
            self._recordings.executed(lease.executor, lease.model)
        if not abandoned:
            self._weighing.ended(lease, device_ms, requests)
        if abandoned:
            self._dispatcher.abandon(lease, "given up by its owner while it may still execute")
        else:
            self._dispatcher.release(lease, f"released after {device_ms:.1f} ms of work")

    def release_lost(self, acquire_id: str, abandoned: bool) -> None:
        """Ends an Acquire whose answer never reached its caller: what it was granted goes back, and where it
        still waits it waits no more."""
        waiter = self._pool.waiting.find(acquire_id)
        if waiter is not None:
            self._pool.waiting.remove(waiter)
            self._dispatcher.fail(waiter, Cancelled("GIVEN_UP", f"{waiter.owner} gave request {waiter.request_id} up"))
        for lease in [x for x in self._pool.leases.values() if x.acquire_id == acquire_id]:
            self.release(lease.lease_id, 0.0, abandoned)

    def release_all(self, owner: str, incarnation: str) -> int:
        """Gives back the leases of an owner's earlier incarnations. Returns how many there were."""
        stale = [x for x in self._pool.leases.values() if x.owner == owner and x.incarnation != incarnation]
        stale = [lease for lease in stale if not lease.ending]
        for lease in stale:
            self._dispatcher.abandon(lease, f"{owner} has restarted")
        return len(stale)

    def stop(self, error: RouseError) -> None:
        """Refuses everything that waits and everything that comes."""
        self._stopping = error
        self._dispatcher.refuse_all(error)


def misfit(pool: Pool, model: Model) -> RouseError | None:
    """Why no device of this node can ever hold a model; None where one can."""
    if not model.size_bytes:
        return None
    largest = max(pool.devices.values(), key=lambda d: d.ledger.capacity_bytes)
    if largest.kind == CUDA and not specs.is_redirected(model.version.spec):
        return Unimplemented(
            "EXECUTION_UNAVAILABLE",
            f"function {model.function} asks for plain execution, and the devices of this node are CUDA, where only "
            'native executors compute; deploy it with execution = "rouse"',
            function=model.function,
            device=largest.name,
        )
    need = model.size_bytes + model.working_bytes
    if need <= largest.ledger.capacity_bytes:
        return None
    return FailedPrecondition(
        "MODEL_TOO_LARGE",
        f"function {model.function} needs {need} B on one device ({model.size_bytes} B weights and "
        f"{model.working_bytes} B working memory); the largest device here, {largest.name}, has "
        f"{largest.ledger.capacity_bytes} B",
        function=model.function,
        device=largest.name,
    )


def _spans(waiter: Waiter, swaps: list[Swap], ended: float, error: BaseException | None, lease: Lease | None) -> None:
    """`wait` and `swap`, one after the other: a swap that several requests waited for shows in each trace."""
    if not telemetry.current().is_recording():
        return
    at = waiter.arrived_at
    for swap in swaps:
        started = max(at, swap.started)
        _span("wait", at, started, "", {})
        attributes: dict[str, str | int] = {
            "device": swap.device,
            "bytes": swap.size_bytes,
            "source": swap.source,
            "evicted": ",".join(swap.evicted),
            "reason": swap.reason,
        }
        _span("swap", started, min(ended, max(started, swap.ended)), swap.error, attributes)
        at = min(ended, max(started, swap.ended))
    if not swaps or ended - at > SHORT_S or error is not None:
        attributes = {"device": lease.device_name if lease is not None else "", "reason": waiter.reason}
        _span("wait", at, ended, f"{type(error).__name__}: {error}"[:300] if error is not None else "", attributes)


def _span(name: str, start: float, end: float, error: str, attributes: dict[str, str | int]) -> None:
    span = TRACER.start_span(name, kind=SpanKind.INTERNAL, start_time=int(start * 1e9), attributes=attributes)
    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(end_time=int(max(start, end) * 1e9))
