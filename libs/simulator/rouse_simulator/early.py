"""A node with early binding: a function has one device, for good or for as long as it is kept alive.

Memory is taken when a function starts; its requests run on its device only, one after the other in the order of their
arrival. Where no device has room it is not executed (Native, NonSwap), or waits until another one has outlived its
lifespan and then starts cold (keep-alive).
"""

from __future__ import annotations

from collections import deque

from rouse_policy import binding, keep_alive, queueing
from rouse_simulator.clock import Clock
from rouse_simulator.functions import Function, Line, Request
from rouse_simulator.profile import NodeProfile
from rouse_simulator.results import DeviceResult
from rouse_simulator.variants import Binding, Variant

# Functions that share a runtime are bounded by memory alone.
UNLIMITED = 1_000_000


class _Device:
    def __init__(self, name: str, free_bytes: int, places: int, line: Line, result: DeviceResult) -> None:
        self.name, self.free_bytes, self.places, self.line, self.result = name, free_bytes, places, line, result
        self.busy = False
        self.taken_at = 0.0


class _Life:
    """A function's history and what it is about to do."""

    __slots__ = ("executing", "expires", "gaps", "last_arrival", "queued", "starting")

    def __init__(self) -> None:
        self.gaps = keep_alive.State()
        self.last_arrival: float | None = None
        self.expires = 0
        self.starting = False
        self.queued = False
        self.executing = 0


class EarlyNode:
    """One node. `measured_from` is when results begin to count."""

    def __init__(
        self, name: str, profile: NodeProfile, variant: Variant, clock: Clock, seed: int, measured_from: float
    ) -> None:
        self.name, self._profile, self._variant, self._clock = name, profile, variant, clock
        self._from = measured_from
        self._reclaims = variant.binding is Binding.KEEP_ALIVE
        free = profile.pool_bytes if variant.remoting else profile.device_bytes
        places = UNLIMITED if variant.remoting else profile.native_places
        settings = queueing.Settings(max_acquiring=len(profile.devices) + 1, order=variant.order)
        self._devices = {d: _Device(d, free, places, Line(settings), DeviceResult(name, d)) for d in profile.devices}
        self._lives: dict[str, _Life] = {}
        # Functions that have requests and no device, the longest waiting first; and their requests.
        self._homeless: deque[Function] = deque()
        self._kept_back: dict[str, deque[Request]] = {}

    @property
    def devices(self) -> list[DeviceResult]:
        return [device.result for device in self._devices.values()]

    def deploy(self, function: Function) -> bool:
        """Binds a function; False where no device has room."""
        self._lives[function.name] = _Life()
        return self._bind(function)

    def warm(self, functions: list[Function]) -> None:
        """Functions that were bound are warm."""

    def _need(self, function: Function) -> int:
        runtime = 0 if self._variant.remoting else self._profile.runtime_bytes
        return function.model.resident_bytes + runtime

    def _bind(self, function: Function) -> bool:
        free = tuple((d.name, d.free_bytes) for d in self._devices.values() if d.places)
        snapshot = binding.Snapshot(self._need(function), free)
        decision, _ = binding.decide(snapshot, binding.State(), binding.Settings(), self._clock.now)
        if decision.device is None:
            return False
        function.bound = decision.device
        device = self._devices[decision.device]
        device.free_bytes -= snapshot.need_bytes
        device.places -= 1
        return True

    def arrive(self, request: Request) -> None:
        function, now = request.function, self._clock.now
        life = self._lives[function.name]
        if self._reclaims and life.last_arrival is not None:
            life.gaps = keep_alive.learn(life.gaps, now - life.last_arrival)
        life.last_arrival = now
        life.expires += 1
        if function.bound and not life.starting:
            self._join(request)
            return
        if not self._reclaims:
            # Nobody will ever execute it: its deadline passes.
            return
        self._kept_back.setdefault(function.name, deque()).append(request)
        if not function.bound and not life.queued:
            life.queued = True
            self._homeless.append(function)
            self._start_homeless()

    # ---- lives ----

    def _start_homeless(self) -> None:
        """Starts functions cold in turn, as long as the first of them finds room."""
        while self._homeless and self._bind(self._homeless[0]):
            function = self._homeless.popleft()
            life = self._lives[function.name]
            life.queued, life.starting = False, True
            self._clock.at(self._clock.now + function.model.cold_start_s, self._started, function)

    def _started(self, function: Function) -> None:
        self._lives[function.name].starting = False
        for request in self._kept_back.pop(function.name, ()):
            self._join(request)

    def _expire(self, function: Function, number: int) -> None:
        """Takes the memory back from a function that had no request since."""
        life = self._lives[function.name]
        if number != life.expires or life.executing or function.waiting or not function.bound:
            return
        device = self._devices[function.bound]
        device.free_bytes += self._need(function)
        device.places += 1
        function.bound = ""
        self._start_homeless()

    # ---- requests ----

    def _join(self, request: Request) -> None:
        device = self._devices[request.function.bound]
        device.line.add(request)
        self._dispatch(device)

    def _dispatch(self, device: _Device) -> None:
        if device.busy or not len(device.line):
            return
        function = device.line.next(0, set(), self._clock.now)
        assert function is not None
        request = device.line.take(function)
        device.busy, device.taken_at = True, self._clock.now
        self._lives[function.name].executing += 1
        seconds = function.model.resident_s if self._variant.remoting else function.model.native_s
        # The router sends a device's requests one after the other, and waits for each answer.
        self._clock.at(self._clock.now + seconds + self._profile.way_s, self._finish, request, device)

    def _finish(self, request: Request, device: _Device) -> None:
        now, function = self._clock.now, request.function
        device.busy = False
        # It computes for all of this time but the way.
        device.result.busy_s += max(0.0, now - self._profile.way_s - max(device.taken_at, self._from))
        latency, in_time = now - request.arrived, now <= request.deadline
        if request.arrived >= self._from:
            function.result.latencies_s.append(latency)
            function.result.in_time += in_time
            device.result.served += 1
            device.result.latencies_s.append(latency)
        device.line.answered(function, in_time)
        life = self._lives[function.name]
        life.executing -= 1
        if self._reclaims and not life.executing and not function.waiting:
            keep_s = function.lifespan_s
            if keep_s is None:
                keep_s = keep_alive.decide(None, life.gaps, self._variant.keep, now)[0].keep_s
            self._clock.at(now + keep_s, self._expire, function, life.expires)
        self._dispatch(device)

    def check(self) -> None:
        """Raises AssertionError where the books do not add up."""
        whole = self._profile.pool_bytes if self._variant.remoting else self._profile.device_bytes
        assert all(0 <= device.free_bytes <= whole for device in self._devices.values())
