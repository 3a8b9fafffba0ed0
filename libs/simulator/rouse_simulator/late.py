"""A node with late binding: models in host memory, swapped to an idle device for each request that needs it.

A request holds its device from its start to its end, with its swap. A swap from the host shares its switch with others;
a request ends when it is computed, at least as long as Table 4's latency for its kind of swap, and `tail_s` after the
last byte of its weights arrived.
"""

from __future__ import annotations

import math

from rouse_policy import eviction, interference, queueing
from rouse_policy.interference import HOST
from rouse_policy.scheduling import PATIENCE_SHARE
from rouse_simulator.clock import Clock
from rouse_simulator.functions import Function, Line, Request
from rouse_simulator.links import SharedLink
from rouse_simulator.profile import NodeProfile
from rouse_simulator.results import DeviceResult
from rouse_simulator.variants import Variant


class _Resident:
    """A model's copy on a device. `kept` counts what forbids that it leaves: execution, loading, being copied from."""

    __slots__ = ("candidate", "function", "kept", "last_used_at", "loaded_at", "whole")

    def __init__(self, function: Function, now: float) -> None:
        self.function, self.loaded_at, self.last_used_at = function, now, now
        self.kept, self.whole = 1, False
        self.candidate: eviction.Candidate | None = None


class _Device:
    __slots__ = (
        "answered_at", "busy", "free_bytes", "kept_bytes", "link", "loading_heavy", "name", "residents", "result",
        "taken_at",
    )  # fmt: skip

    def __init__(self, name: str, free_bytes: int, link: SharedLink, result: DeviceResult) -> None:
        self.name, self.free_bytes, self.link, self.result = name, free_bytes, link, result
        self.residents: dict[str, _Resident] = {}
        self.kept_bytes = 0
        self.busy = False
        self.taken_at = 0.0
        # When the answer before has reached the router, which sends a device's requests one after the other.
        self.answered_at = 0.0
        self.loading_heavy: bool | None = None


class LateNode:
    """One node. `measured_from` is when results begin to count."""

    def __init__(
        self,
        name: str,
        profile: NodeProfile,
        variant: Variant,
        clock: Clock,
        seed: int,
        measured_from: float,
    ) -> None:
        self.name, self._profile, self._variant, self._clock = name, profile, variant, clock
        self._from = measured_from
        groups = profile.topology.switches
        alone = tuple((d,) for d in profile.devices if all(d not in group for group in groups))
        self._devices: dict[str, _Device] = {}
        for group in (*groups, *alone):
            link = SharedLink(clock, profile.flow_bytes_s, profile.switch_bytes_s)
            for device in group:
                self._devices[device] = _Device(device, profile.pool_bytes, link, DeviceResult(name, device))
        self._idle = dict.fromkeys(profile.devices)
        self._line = Line(
            queueing.Settings(
                max_acquiring=len(profile.devices),
                order=variant.order,
                objective=variant.objective,
                late_last=variant.late_last,
            )
        )
        self._scheduling = interference.Settings(variant.mode, profile.topology)
        self._random = interference.State(seed)
        self._evicting = eviction.Settings(order=variant.evict)
        # Whole copies of each model, and which devices load from the host.
        self._holders: dict[str, dict[str, _Resident]] = {}
        self._loading: dict[str, bool] = {}

    @property
    def devices(self) -> list[DeviceResult]:
        return [device.result for device in self._devices.values()]

    def deploy(self, function: Function) -> bool:
        """Takes a function in; with late binding there is always room, as long as host memory lasts."""
        self._holders[function.name] = {}
        return True

    def warm(self, functions: list[Function]) -> None:
        """Fills the devices with models, as requests that came before the first one would have, in turn."""
        devices = list(self._devices.values())
        for number, function in enumerate(functions):
            device = devices[number % len(devices)]
            if function.model.resident_bytes <= device.free_bytes:
                self._put(device, function)
                self._whole(device, device.residents[function.name])
                self._release(device, device.residents[function.name])

    # ---- requests ----

    def arrive(self, request: Request) -> None:
        self._line.add(request)
        self._forget(request.function)
        if self._idle:
            self._dispatch()

    def _dispatch(self) -> None:
        """Starts requests until no device is idle, or none of those that wait can start."""
        blocked: set[str] = set()
        while self._idle and len(self._line) > len(blocked):
            function = self._line.next(len(self._devices) - len(self._idle), blocked, self._clock.now)
            if function is None:
                return
            if not self._start(function):
                blocked.add(function.name)

    def _start(self, function: Function) -> bool:
        """Starts the function's next request, unless no idle device can have room for its model."""
        holders = self._holders[function.name]
        # Who has rested longest comes first, so that devices take turns where the policy has no preference.
        idle = list(self._idle)
        while idle:
            snapshot = interference.Snapshot(function.name, tuple(idle), tuple(holders), self._loading)
            decision, self._random = interference.decide(snapshot, self._random, self._scheduling, self._clock.now)
            assert decision.device is not None
            device = self._devices[decision.device]
            if not decision.source:
                self._execute(self._take(function), device)
                return True
            victims = self._room(device, function)
            if victims is not None:
                for victim in victims:
                    self._evict(device, victim.version)
                self._swap(self._take(function), device, decision.source, bool(victims))
                return True
            idle.remove(decision.device)
        return False

    def _take(self, function: Function) -> Request:
        request = self._line.take(function)
        self._forget(function)
        return request

    def _execute(self, request: Request, device: _Device) -> None:
        """Computes with the weights there."""
        self._occupy(device)
        self._keep(device, device.residents[request.function.name])
        self._clock.at(self._reached(device) + request.function.model.resident_s, self._finish, request, device)

    def _reached(self, device: _Device) -> float:
        """When a request that the device is given now reaches its function."""
        return max(self._clock.now, device.answered_at) + self._profile.way_s / 2

    def _occupy(self, device: _Device) -> None:
        device.busy, device.taken_at = True, self._clock.now
        del self._idle[device.name]

    def _swap(self, request: Request, device: _Device, source: str, evicted: bool) -> None:
        """Computes while the weights arrive."""
        function, now = request.function, self._clock.now
        self._put(device, function)
        self._occupy(device)
        model = function.model
        # The weights set out at once, the request on its way to the function.
        computed = self._reached(device) + model.resident_s
        there_s = self._profile.way_s / 2
        if source != HOST:
            device.result.swaps_link += now >= self._from
            sender = self._devices[source]
            copy = sender.residents[function.name]
            self._keep(sender, copy)
            rate = self._profile.topology.bandwidth(source, device.name)
            moved = now + model.weights_bytes / rate
            self._clock.at(moved, self._copied_over, device, sender, copy)
            ends = max(now + there_s + model.swap_link_s, moved + self._profile.tail_s, computed)
            self._clock.at(ends, self._finish, request, device)
            return
        device.result.swaps_host += now >= self._from
        self._loading[device.name] = function.heavy
        delay = 0.0
        if self._variant.driver_blocks and evicted:
            delay = math.ceil(model.resident_bytes / self._profile.block_bytes) * self._profile.block_s
        ends = max(now + delay + there_s + model.swap_host_s, computed)
        if delay:
            self._clock.at(now + delay, self._copy, request, device, ends)
        else:
            self._copy(request, device, ends)

    def _copy(self, request: Request, device: _Device, ends: float) -> None:
        device.link.copy(
            request.function.model.weights_bytes, lambda: self._copied(request, device, ends)
        )  # fmt: skip

    def _copied(self, request: Request, device: _Device, ends: float) -> None:
        del self._loading[device.name]
        self._whole(device, device.residents[request.function.name])
        self._clock.at(max(ends, self._clock.now + self._profile.tail_s), self._finish, request, device)

    def _copied_over(self, device: _Device, sender: _Device, copy: _Resident) -> None:
        self._release(sender, copy)
        self._whole(device, device.residents[copy.function.name])

    def _finish(self, request: Request, device: _Device) -> None:
        now, function = self._clock.now, request.function
        resident = device.residents[function.name]
        resident.last_used_at = now
        self._release(device, resident)
        device.busy = False
        self._idle[device.name] = None
        device.result.busy_s += max(0.0, now - max(device.taken_at, self._from))
        device.answered_at = now + self._profile.way_s / 2
        latency = device.answered_at - request.arrived
        in_time = device.answered_at <= request.deadline
        if request.arrived >= self._from:
            function.result.latencies_s.append(latency)
            function.result.in_time += in_time
            device.result.served += 1
            device.result.latencies_s.append(latency)
        self._line.answered(function, in_time)
        if len(self._line):
            self._dispatch()

    # ---- memory ----

    def _room(self, device: _Device, function: Function) -> tuple[eviction.Victim, ...] | None:
        """Who leaves so that the model fits; None where it cannot."""
        size = function.model.resident_bytes
        if size <= device.free_bytes:
            return ()
        now, first = self._clock.now, function.waiting[0]
        snapshot = eviction.Snapshot(
            capacity_bytes=self._profile.pool_bytes,
            kept_bytes=device.kept_bytes,
            kept_working_bytes=0,
            candidates=tuple(
                r.candidate or self._candidate(device, r) for r in device.residents.values() if not r.kept
            ),
            # It was chosen, so its turn is before that of all others; those of resident models may go before it until
            # it is overdue.
            claim=eviction.Claim(0, size, 0, overdue=now - first.arrived >= PATIENCE_SHARE * function.model.deadline_s),
        )
        plan, _ = eviction.decide(snapshot, eviction.State(), self._evicting, now)
        return plan.victims if plan.fits else None

    def _candidate(self, device: _Device, resident: _Resident) -> eviction.Candidate:
        function = resident.function
        resident.candidate = eviction.Candidate(
            version=function.name,
            size_bytes=function.model.resident_bytes,
            working_bytes=0,
            loaded_at=resident.loaded_at,
            last_used_at=resident.last_used_at,
            is_copy=len(self._holders[function.name]) > 1,
            first_turn=1 if function.waiting else None,
            heavy=function.heavy,
        )
        return resident.candidate

    def _forget(self, function: Function) -> None:
        """What eviction was told of the function's copies holds no more."""
        for resident in self._holders[function.name].values():
            resident.candidate = None

    def _put(self, device: _Device, function: Function) -> None:
        """Takes memory for a model that is not there yet, and keeps it from leaving."""
        size = function.model.resident_bytes
        assert size <= device.free_bytes
        device.free_bytes -= size
        device.kept_bytes += size
        device.residents[function.name] = _Resident(function, self._clock.now)

    def _whole(self, device: _Device, resident: _Resident) -> None:
        resident.whole = True
        self._holders[resident.function.name][device.name] = resident
        self._forget(resident.function)

    def _keep(self, device: _Device, resident: _Resident) -> None:
        if not resident.kept:
            device.kept_bytes += resident.function.model.resident_bytes
        resident.kept += 1

    def _release(self, device: _Device, resident: _Resident) -> None:
        resident.kept -= 1
        resident.candidate = None
        if not resident.kept:
            device.kept_bytes -= resident.function.model.resident_bytes

    def _evict(self, device: _Device, name: str) -> None:
        resident = device.residents.pop(name)
        assert not resident.kept, f"{name} is in use on {device.name} and may not leave"
        device.free_bytes += resident.function.model.resident_bytes
        del self._holders[name][device.name]
        self._forget(resident.function)
        device.result.evictions += self._clock.now >= self._from

    def check(self) -> None:
        """Raises AssertionError where the books do not add up."""
        for device in self._devices.values():
            sizes = {n: r.function.model.resident_bytes for n, r in device.residents.items()}
            assert device.free_bytes + sum(sizes.values()) == self._profile.pool_bytes
            assert device.kept_bytes == sum(sizes[n] for n, r in device.residents.items() if r.kept)
            assert device.busy == (device.name not in self._idle)
            for name, resident in device.residents.items():
                assert resident.whole == (device.name in self._holders[name])
