"""A node that decides as a live one: node-router's order of its queues, then gpu-server's scheduling of the pool.

What `late.py` leaves out, as Torpor's paper does, is here: the way through gateway and router, a device that loads
while it executes, patience and minimum residency. Every function has one instance. Costs are those of a measured
machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rouse_policy import heaviness, pool, queueing, scheduling
from rouse_policy.heaviness import Measured
from rouse_policy.pool import Phase
from rouse_simulator.arrivals import Arrivals
from rouse_simulator.clock import Clock
from rouse_simulator.functions import Function, Line, Request
from rouse_simulator.measured import Levels, Machine
from rouse_simulator.profile import Model
from rouse_simulator.results import DeviceResult, FunctionResult, Results

# What is known of how heavy functions are, by function and device.
Weighed = dict[tuple[str, str], Measured]
# As gpu-server learns the gaps between a model's requests.
GAP_SMOOTHING = 0.3


@dataclass(frozen=True)
class Setup:
    """What is run.

    Args:
        machine: what it costs.
        devices: bytes of each, by name.
        objective_s: within which a request is to be answered, from its arrival.
        timeout_s: after which its client gives up.
        queueing: of node-router.
        scheduling, heaviness: of gpu-server.
        seed: of the costs that are drawn.
    """

    machine: Machine
    devices: Mapping[str, int]
    objective_s: float
    timeout_s: float
    queueing: queueing.Settings = field(default_factory=queueing.Settings)
    scheduling: pool.Settings = field(default_factory=pool.Settings)
    heaviness: heaviness.Settings = field(default_factory=heaviness.Settings)
    seed: int = 0


@dataclass(slots=True)
class _Resident:
    phase: Phase
    loaded_at: float
    last_used_at: float
    # What its load took, until the first request after it has been counted.
    moved_s: float | None = None


@dataclass(slots=True)
class _Version:
    """A function's asks for a device, by ticket with the time when each came, and whether its instance is busy."""

    function: Function
    asks: dict[int, tuple[float, float]] = field(default_factory=dict)
    busy: bool = False
    last_arrival: float | None = None
    gap_s: float = float("inf")
    device: str | None = None


class PooledNode:
    """One node in virtual time. `weighed` is what it knows of heaviness from before; it adds to it."""

    def __init__(self, setup: Setup, clock: Clock, count: int, weighed: Weighed | None = None) -> None:
        self.setup, self.clock = setup, clock
        self._weighed: Weighed = {} if weighed is None else weighed
        self._random = np.random.default_rng(setup.seed)
        self._line = Line(setup.queueing)
        self._state = scheduling.State()
        self._tickets = 0
        self._wake = 0
        # Requests whose clients wait.
        self._under_way = 0
        # Of requests that are here, the seconds of their way back; of asks, whose they are.
        self._ways: dict[int, float] = {}
        self._asks: dict[int, str] = {}
        self._on: dict[str, dict[str, _Resident]] = {name: {} for name in setup.devices}
        self._busy: dict[str, float] = {}
        self.devices = {name: DeviceResult("node0", name) for name in setup.devices}
        machine = setup.machine
        seconds = machine.run_ms[0][0] / 1000
        # Of a model the queueing policy sees the deadline alone.
        model = Model(
            machine.name, "", machine.weights_bytes, 0, seconds, seconds, seconds, seconds, 1.0, setup.timeout_s
        )
        self.functions = [
            Function(f"f{number:05}", model, False, FunctionResult(machine.name, setup.objective_s))
            for number in range(count)
        ]
        self._versions = {function.name: _Version(function) for function in self.functions}

    def warm(self, order: list[int]) -> None:
        """Has models on the devices as if their functions had been called in this order, the last one latest."""
        room = dict(self.setup.devices)
        for place, number in enumerate(reversed(order)):
            name = max(room, key=lambda n: room[n])
            if room[name] < self.setup.machine.weights_bytes:
                return
            room[name] -= self.setup.machine.weights_bytes
            before = -float(place + 1)
            resident = _Resident(Phase.RESTING, before, before)
            self._on[name][self.functions[number].name] = resident
            self._versions[self.functions[number].name].device = name

    # ---- the way in: gateway, router ----

    def arrive(self, number: int) -> None:
        """A client sends a request."""
        function = self.functions[number]
        function.result.arrived += 1
        self._tickets += 1
        request = Request(self._tickets, function, self.clock.now)
        self._under_way += 1
        way = self._draw(self.setup.machine.way_ms)
        self._ways[request.ticket] = way / 2
        self._after(way / 2, self._enter, request)

    def _enter(self, request: Request) -> None:
        self._line.add(request)
        self._ask()

    def _ask(self) -> None:
        """Lets functions ask for devices, in the order of the policy, as far as its limits go."""
        limit = self.setup.queueing.max_acquiring_per_version
        while True:
            asking = sum(len(version.asks) for version in self._versions.values())
            full = {
                name for name, version in self._versions.items()
                if len(version.asks) >= min(limit, len(version.function.waiting))
            }  # fmt: skip
            function = self._line.next(asking, full, self.clock.now)
            if function is None:
                return
            first = function.waiting[0]
            self._tickets += 1
            self._versions[function.name].asks[self._tickets] = (float("inf"), first.deadline)
            self._asks[self._tickets] = function.name
            self.clock.at(first.deadline, self._expire, self._tickets)
            lease = self._draw(self.setup.machine.lease_ms)
            self._after(lease / 2, self._asked, self._tickets)

    def _end_ask(self, ticket: int) -> _Version:
        version = self._versions[self._asks.pop(ticket)]
        del version.asks[ticket]
        return version

    def _expire(self, ticket: int) -> None:
        """The client of the request that an ask was made for gave up; it goes out of the queue, too."""
        if ticket not in self._asks:
            return
        self._drop_late(self._end_ask(ticket).function)
        self._ask()
        self._step()

    def _drop_late(self, function: Function) -> None:
        while function.waiting and function.waiting[0].deadline <= self.clock.now:
            del self._ways[self._line.take(function).ticket]
            self._under_way -= 1
            self._line.answered(function, in_time=False)

    def _asked(self, ticket: int) -> None:
        """The ask has reached gpu-server."""
        if ticket not in self._asks:
            return
        version, now = self._versions[self._asks[ticket]], self.clock.now
        version.asks[ticket] = (now, version.asks[ticket][1])
        if version.last_arrival is not None:
            gap = now - version.last_arrival
            kept = 1 - GAP_SMOOTHING if version.gap_s != float("inf") else 0.0
            version.gap_s = (1 - kept) * gap + (kept * version.gap_s if kept else 0.0)
        version.last_arrival = now
        self._step()

    # ---- gpu-server ----

    def _step(self) -> None:
        """One decision, carried out."""
        now = self.clock.now
        snapshot = self._snapshot()
        if not snapshot.waiters:
            return
        decision, self._state = scheduling.decide(snapshot, self._state, self.setup.scheduling, now)
        self._wake += 1
        if decision.wake_at is not None:
            self.clock.at(decision.wake_at, self._woken, self._wake)
        for load in decision.loads:
            self._load(load)
        for grant in decision.grants:
            self._grant(grant)

    def _woken(self, number: int) -> None:
        if number == self._wake:
            self._step()

    def _snapshot(self) -> pool.Snapshot:
        asking = {name: version for name, version in self._versions.items() if version.asks}
        waiters = [
            pool.Waiter(ticket, name, came, deadline)
            for name, version in asking.items()
            for ticket, (came, deadline) in version.asks.items()
            if came <= self.clock.now
        ]
        here = [(device, name, r) for device, residents in self._on.items() for name, r in residents.items()]
        names = {waiter.version for waiter in waiters} | {name for _, name, _ in here}
        size = self.setup.machine.weights_bytes
        return pool.Snapshot(
            devices=tuple(pool.Device(n, c, n in self._busy) for n, c in self.setup.devices.items()),
            residents=tuple(
                pool.Resident(n, d, r.phase, r.loaded_at, r.last_used_at, pool.HOST if r.phase is Phase.LOADING else "")
                for d, n, r in here
            ),
            models={
                name: pool.Model(
                    name,
                    size,
                    0,
                    gap_s=self._versions[name].gap_s,
                    heavy_on=tuple(device for device in sorted(self._on) if self._heavy(name, device)),
                )
                for name in names
            },
            executors=tuple(
                pool.Executor(name, name, self._versions[name].device)
                for name in names
                if not self._versions[name].busy
            ),
            waiters=tuple(sorted(waiters, key=lambda waiter: waiter.ticket)),
        )

    def _load(self, load: pool.Load) -> None:
        device = load.device
        for victim in load.victims:
            self._on[device][victim.version].phase = Phase.LEAVING
            seconds = self._draw(self.setup.machine.evict_ms)
            self._after(seconds, self._evicted, device, victim.version)
        seconds = self._draw(self.setup.machine.load_ms)
        self._on[device][load.version] = _Resident(Phase.LOADING, self.clock.now, self.clock.now, seconds)
        self.devices[device].swaps_host += 1
        self._after(seconds, self._loaded, device, load.version)

    def _evicted(self, device: str, name: str) -> None:
        del self._on[device][name]
        if self._versions[name].device == device:
            self._versions[name].device = None
        self.devices[device].evictions += 1
        self._step()

    def _loaded(self, device: str, name: str) -> None:
        resident = self._on[device][name]
        resident.phase = Phase.RESTING
        resident.loaded_at = resident.last_used_at = self.clock.now
        if self._versions[name].device is None:
            self._versions[name].device = device
        self._step()

    def _grant(self, grant: pool.Grant) -> None:
        """The first of the function's requests has the device from now on."""
        version = self._end_ask(grant.ticket)
        name, device, now = version.function.name, grant.device, self.clock.now
        self._drop_late(version.function)
        resident = self._on[device][name]
        resident.phase, resident.last_used_at = Phase.EXECUTING, now
        version.busy, version.device = True, device
        self._busy[device] = now
        if not version.function.waiting:
            self._release(device, name)
            return
        request = self._line.take(version.function)
        while len(version.asks) > len(version.function.waiting):
            self._end_ask(max(version.asks))
        machine, asked = self.setup.machine, self._draw(self.setup.machine.lease_ms) / 2
        if resident.moved_s is not None:
            asked = max(0.0, self._draw(machine.first_lease_ms) - asked)
        run = self._draw(machine.run_ms if resident.moved_s is None else machine.first_run_ms)
        self._weigh(name, device, run, resident.moved_s)
        resident.moved_s = None
        self._after(asked + run, self._executed, request, device)
        self._ask()

    def _weigh(self, name: str, device: str, run_s: float, moved_s: float | None) -> None:
        """Learns what a swap makes of the function's requests, as gpu-server does."""
        known = self._weighed.get((name, device), Measured())
        seconds = run_s + (moved_s or 0.0)
        self._weighed[name, device] = heaviness.learn(known, seconds, moved_s is not None, self.setup.heaviness)

    def _heavy(self, name: str, device: str) -> bool:
        known = self._weighed.get((name, device))
        return known is not None and heaviness.decide(known, None, self.setup.heaviness, self.clock.now)[0].heavy

    def _executed(self, request: Request, device: str) -> None:
        """The answer goes back, and the device is free."""
        now = self.clock.now
        in_time = now <= request.arrived + self.setup.objective_s
        self._line.answered(request.function, in_time)
        self._after(self._ways.pop(request.ticket), self._answered, request, device)
        self._release(device, request.function.name)
        self._ask()

    def _release(self, device: str, name: str) -> None:
        now, resident = self.clock.now, self._on[device][name]
        self.devices[device].busy_s += now - self._busy.pop(device)
        resident.phase, resident.last_used_at = Phase.RESTING, now
        self._versions[name].busy = False
        self._step()

    def _answered(self, request: Request, device: str) -> None:
        self._under_way -= 1
        latency = self.clock.now - request.arrived
        if latency > self.setup.timeout_s:
            return
        result = request.function.result
        result.latencies_s.append(latency)
        result.in_time += latency <= self.setup.objective_s
        self.devices[device].served += 1
        self.devices[device].latencies_s.append(latency)

    def check(self) -> None:
        """Raises AssertionError where the books do not add up."""
        size = self.setup.machine.weights_bytes
        for name, residents in self._on.items():
            # What leaves may overlap with what takes its place for a moment.
            staying = [r for r in residents.values() if r.phase is not Phase.LEAVING]
            assert len(staying) * size <= self.setup.devices[name]
            executing = sum(r.phase is Phase.EXECUTING for r in staying)
            assert executing == (name in self._busy)
        assert sum(version.busy for version in self._versions.values()) == len(self._busy)
        asks = {ticket: name for name, version in self._versions.items() for ticket in version.asks}
        assert asks == self._asks
        assert len(asks) <= self.setup.queueing.max_acquiring

    def _after(self, seconds: float, then: Callable[..., None], *arguments: Any) -> None:
        self.clock.at(self.clock.now + seconds, then, *arguments)

    def _draw(self, levels: Levels) -> float:
        """One of the costs, in seconds, that were measured beside as many other requests as there are now."""
        others = max(0, self._under_way - 1)
        measured_ms = levels[min(others, len(levels) - 1)]
        return measured_ms[int(self._random.integers(len(measured_ms)))] / 1000


def simulate(
    setup: Setup, arrivals: Arrivals, warm: list[int] | None = None, weighed: Weighed | None = None
) -> Results:
    """Plays arrivals to a node, whose devices hold what was called last in `warm`."""
    clock = Clock()
    node = PooledNode(setup, clock, arrivals.count, weighed)
    node.warm(warm or [])
    seconds = float(arrivals.times[-1]) if len(arrivals) else 0.0
    clock.run(arrivals, node.arrive, seconds + setup.timeout_s)
    return Results([f.result for f in node.functions], list(node.devices.values()), seconds or 1.0)
