"""Applies the scheduling policy whenever something changes: starts loads, grants leases, ends expired ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from rouse_common.clock import Clock
from rouse_common.errors import ResourceExhausted, RouseError, Unavailable
from rouse_gpu_server.logic.attachments import Attachments
from rouse_gpu_server.logic.swapper import Swapper
from rouse_gpu_server.logic.work import Background
from rouse_gpu_server.state.pool import Pool
from rouse_gpu_server.state.records import Lease, Model, Phase, device_itself
from rouse_gpu_server.state.waiting import Waiter
from rouse_gpu_server.state.wakeup import Wakeup
from rouse_policy import golden, growth, interference, scheduling

LOG = logging.getLogger(__name__)


class Dispatcher:
    """The one place where decisions are made and leases begin and end."""

    def __init__(
        self,
        pool: Pool,
        swapper: Swapper,
        attachments: Attachments,
        background: Background,
        wakeup: Wakeup,
        clock: Clock,
        settings: scheduling.Settings,
        lease_margin_s: float,
        decided: Callable[[str], object] | None = None,
        seed: int = 0,
    ) -> None:
        self._pool, self._swapper, self._attachments = pool, swapper, attachments
        # Told every decision as a line for replaying.
        self._decided = decided
        self._background, self._wakeup, self._clock = background, wakeup, clock
        self._settings, self._margin_s = settings, lease_margin_s
        self._state = scheduling.State(chance=interference.State(seed))
        self._wake_at: float | None = None
        # Executors that were there when we started are made idle before anything is granted.
        self.settled = False

    async def run(self) -> None:
        """Decides after every change and when a decision or a lease falls due, until cancelled."""
        while True:
            due = min((lease.expires_at for lease in self._pool.leases.values() if not lease.ending), default=None)
            wake = min((at for at in (due, self._wake_at) if at is not None), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wake is None else max(0.0, wake - self._clock.monotonic())):
                    await self._wakeup.for_dispatch()
            self.step()

    def step(self) -> None:
        """Ends leases that expired and carries one decision out."""
        now = self._clock.monotonic()
        for lease in [x for x in self._pool.leases.values() if x.expires_at <= now and not x.ending]:
            self.abandon(lease, f"expired {now - lease.granted_at:.1f} s after it was granted")
        self._wake_at = None
        if not self._pool.synced or not self.settled:
            return
        self._make_room(now)
        pins = self._pool.to_bring(now)
        due = tuple(version_id for version_id, at in pins.items() if at <= now)
        if not due and not len(self._pool.waiting):
            self._wake_at = min(pins.values(), default=None)
            return
        self._refuse_without_executors()
        snapshot, before = self._pool.snapshot(due), self._state
        decision, self._state = scheduling.decide(snapshot, before, self._settings, now)
        if self._decided is not None:
            self._decided(golden.line("scheduling", snapshot, before, self._settings, now, decision))
        later = [at for at in pins.values() if at > now]
        self._wake_at = min([*later, *([decision.wake_at] if decision.wake_at is not None else [])], default=None)
        for load in decision.loads:
            self._pool.models[load.version].unbound = ""
            self._swapper.load(load)
        for refusal in decision.refusals:
            self._refuse(refusal)
        for grant in decision.grants:
            self._grant(grant, now)
        if decision.grants or decision.loads:
            LOG.debug("decided: %s", decision.reason)

    def _make_room(self, now: float) -> None:
        """Where models need more than was known when they came, others leave."""
        devices = self._pool.devices.values()
        for device in devices:
            device.settle()
        if not any(device.owed_bytes for device in devices):
            return
        decision, _ = growth.decide(self._pool.snapshot(), growth.State(), self._settings, now)
        for leave in decision.leaves:
            resident = self._pool.devices[leave.device].residents[leave.version]
            self._swapper.evict(resident, f"others need more memory than was known: {leave.reason}")
        LOG.debug("models have grown: %s", decision.reason)

    def _refuse_without_executors(self) -> None:
        for version_id in self._pool.waiting.versions():
            model = self._pool.models.get(version_id)
            here = model is not None and not model.dropping
            if here and self._pool.serves(version_id):
                for waiter in self._pool.waiting.bound(version_id):
                    if not self._pool.is_alive(waiter.instance_id):
                        self._pool.waiting.remove(waiter)
                        self.fail(waiter, instance_gone(waiter.instance_id, version_id))
                continue
            waiting = self._pool.waiting
            for waiter in waiting.needing_instances(version_id) if here else waiting.of(version_id):
                waiting.remove(waiter)
                self.fail(waiter, no_executor(version_id))

    def _refuse(self, refusal: scheduling.Refusal) -> None:
        """Ends the wait of all requests of a version that no device has room for."""
        model = self._pool.models[refusal.version]
        if not model.unbound:
            # Once, and not at each request that comes.
            LOG.warning("not bound function=%s version=%s reason=%s", model.function, refusal.version, refusal.reason)
        model.unbound = refusal.reason
        for waiter in self._pool.waiting.of(refusal.version):
            self._pool.waiting.remove(waiter)
            self.fail(waiter, no_room(model))

    # ---- granting ----

    def _grant(self, grant: scheduling.Grant, now: float) -> None:
        waiter = self._pool.waiting.get(grant.ticket)
        assert waiter is not None
        self._pool.waiting.remove(waiter)
        executor = self._pool.executors[grant.instance] if grant.instance else device_itself(waiter.version_id)
        device = self._pool.devices.get(grant.device)
        resident = device.residents[waiter.version_id] if device is not None else None
        lease = Lease(
            ticket=waiter.ticket,
            model=self._pool.models[waiter.version_id],
            executor=executor,
            resident=resident,
            acquire_id=waiter.acquire_id,
            owner=waiter.owner,
            incarnation=waiter.incarnation,
            expires_at=waiter.hold_until + self._margin_s,
            granted_at=now,
            tenant=waiter.tenant,
            weight=waiter.weight,
        )
        waiter.reason = grant.reason
        self._pool.claim(lease, f"request {waiter.request_id}: {grant.reason}", now, self._clock.now())
        if waiter.tape_key:
            assert resident is not None
            if self._attachments.has_tapes(resident, waiter.tape_key):
                self._deliver(waiter, lease)
                return
            self._background.start(self._map_and_deliver(waiter, lease), f"grant {waiter.request_id}")
        elif executor.phase is Phase.ATTACHED and executor.attached is resident:
            self._deliver(waiter, lease)
        else:
            self._background.start(self._attach_and_deliver(waiter, lease), f"grant {waiter.request_id}")

    async def _attach_and_deliver(self, waiter: Waiter, lease: Lease) -> None:
        try:
            await self._attachments.attach(lease.executor, lease.model, lease.resident)
        except RouseError:
            # Its place in the list is kept; another executor, or this one once it has recovered, takes it.
            self._end(lease, "the executor could not be attached")
            if not waiter.outcome.done():
                self._pool.waiting.put_back(waiter)
            return
        self._deliver(waiter, lease)

    async def _map_and_deliver(self, waiter: Waiter, lease: Lease) -> None:
        assert lease.resident is not None
        try:
            await self._attachments.map_tapes(lease.resident, waiter.tape_key)
        except RouseError as error:
            # An instance has to answer it: whoever asked asks again, for one.
            self._end(lease, "its tapes could not be loaded")
            self.fail(waiter, no_tape(waiter.version_id, str(error)))
            return
        self._deliver(waiter, lease)

    def _deliver(self, waiter: Waiter, lease: Lease) -> None:
        if waiter.outcome.done():
            self._end(lease, "nobody waits for it any more")
            return
        self._pool.name_lease(lease)
        waiter.outcome.set_result(lease)

    # ---- ending ----

    def release(self, lease: Lease, reason: str) -> None:
        """Ends a lease whose executor is known to be idle."""
        if not lease.ending and lease.lease_id in self._pool.leases:
            self._end(lease, reason)

    def abandon(self, lease: Lease, reason: str) -> None:
        """Ends a lease whose executor may still be at work: the device is free when it surely is not."""
        if lease.ending or lease.lease_id not in self._pool.leases:
            return
        lease.ending = True
        LOG.info(
            "lease abandoned function=%s instance=%s device=%s reason=%s",
            lease.model.function, lease.executor.instance_id, lease.device_name, reason,
        )  # fmt: skip
        self._background.start(self._make_idle(lease, reason), f"abandon {lease.lease_id}")

    async def _make_idle(self, lease: Lease, reason: str) -> None:
        if lease.executor.is_instance:
            await asyncio.wait([self._attachments.settle(lease.executor)])
        else:
            assert lease.resident is not None
            await self._attachments.end_replays(lease.resident)
        if lease.lease_id in self._pool.leases:
            self._end(lease, reason)

    def _end(self, lease: Lease, reason: str) -> None:
        self._pool.end(lease, reason, self._clock.monotonic(), self._clock.now())
        if lease.resident is not None:
            self._attachments.used(lease.resident)
        self._wakeup.kick()

    def fail(self, waiter: Waiter, error: RouseError) -> None:
        """Ends the wait of a request that was taken out of the list."""
        if not waiter.outcome.done():
            waiter.outcome.set_exception(error)

    def refuse_all(self, error: RouseError) -> None:
        """Ends every request that waits."""
        for version_id in self._pool.waiting.versions():
            for waiter in self._pool.waiting.of(version_id):
                self._pool.waiting.remove(waiter)
                self.fail(waiter, error)


def no_executor(version_id: str) -> Unavailable:
    """What a request hears for which there is no instance on this node."""
    return Unavailable(
        "NO_EXECUTOR", f"no instance of version {version_id} serves on this node", retry_after_s=0.1, version=version_id
    )


def no_tape(version_id: str, why: str) -> Unavailable:
    """What a request hears that no tape on this node answers."""
    return Unavailable(
        "NO_TAPE", f"no tape of version {version_id} answers such a request on this node: {why}", version=version_id
    )


def instance_gone(instance_id: str, version_id: str) -> Unavailable:
    """What a request hears that wants an instance which is not there any more."""
    return Unavailable(
        "INSTANCE_GONE",
        f"instance {instance_id} of version {version_id} does not serve on this node any more",
        version=version_id,
        instance=instance_id,
    )


def no_room(model: Model) -> ResourceExhausted:
    """What a request hears whose model no device has room for, by early binding."""
    return ResourceExhausted(
        "DEVICE_FULL_EARLY_BINDING",
        f"function {model.function} fits on no device beside the models that are bound there: {model.unbound}. "
        "Delete others, or start gpu-server with --binding late: models then share the devices",
        function=model.function,
        version=model.version_id,
    )
