"""A node in virtual time that runs on decisions of the scheduling policy, and checks them."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import Any

from rouse_policy.scheduling import (
    HOST,
    Binding,
    Device,
    Executor,
    Grant,
    Load,
    Model,
    Phase,
    Refusal,
    Resident,
    Settings,
    Snapshot,
    State,
    Waiter,
    decide,
)
from rouse_testkit.pools import FAR


@dataclass
class Node:
    """Executes decisions: loads take `load_s`, leases `execute_s`. Checks what must hold at every step. Models without
    an instance have tapes."""

    devices: dict[str, int]
    models: dict[str, Model]
    instances: dict[str, str]
    settings: Settings
    load_s: float = 0.06
    execute_s: float = 0.03
    now: float = 0.0
    state: State = field(default_factory=State)
    residents: dict[tuple[str, str], Resident] = field(default_factory=dict)
    busy: dict[str, Grant] = field(default_factory=dict)
    working: dict[str, str] = field(default_factory=dict)
    waiting: list[Waiter] = field(default_factory=list)
    events: list[tuple[float, int, tuple[Any, ...]]] = field(default_factory=list)
    granted: dict[int, float] = field(default_factory=dict)
    arrived: dict[int, float] = field(default_factory=dict)
    swaps: int = 0
    count: int = 0
    names: int = 0
    tickets: list[int] = field(default_factory=list)
    # Pinned models that leave room for all others.
    stay: frozenset[str] = frozenset()
    refused: list[int] = field(default_factory=list)
    bound: dict[str, str] = field(default_factory=dict)
    # When it wakes up by itself next.
    wakes: float = float("inf")

    def at(self, when: float, *event: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, event))

    def arrive(self, when: float, version: str) -> int:
        self.names += 1
        self.at(when, "arrive", self.names, version)
        return self.names

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, event = heapq.heappop(self.events)
            getattr(self, f"on_{event[0]}")(*event[1:])
            self.decide()
            self.check()

    def on_wake(self) -> None:
        if self.now >= self.wakes:
            self.wakes = float("inf")

    def on_arrive(self, name: int, version: str) -> None:
        self.arrived[name] = self.now
        self.tickets.append(name)
        taped = version not in self.instances.values()
        self.waiting.append(Waiter(len(self.tickets) - 1, version, self.now, FAR, tapes=taped))

    def on_loaded(self, version: str, name: str) -> None:
        self.residents[version, name] = Resident(version, name, Phase.RESTING, self.now, self.now)

    def on_done(self, instance: str, name: str, version: str) -> None:
        if instance:
            del self.working[instance]
        if name != HOST:
            del self.busy[name]
            old = self.residents[version, name]
            self.residents[version, name] = replace(old, phase=Phase.RESTING, last_used_at=self.now)

    def decide(self) -> None:
        pinned = [m for m in self.models.values() if m.pinned and m.version in self.instances.values()]
        others = [m for m in self.models.values() if not m.pinned and m.size_bytes]
        view = Snapshot(
            tuple(Device(n, c, n in self.busy) for n, c in self.devices.items()),
            tuple(self.residents.values()),
            self.models,
            tuple(Executor(i, v) for i, v in self.instances.items() if i not in self.working),
            tuple(self.waiting),
            tuple(m.version for m in pinned if all(v != m.version for v, _ in self.residents)),
            max(others, key=lambda m: m.size_bytes + m.working_bytes, default=None),
        )
        decision, self.state = decide(view, self.state, self.settings, self.now)
        for load in decision.loads:
            if self.settings.binding is Binding.EARLY:
                assert not load.victims, "every model is served"
                assert load.version not in self.bound, "it is bound to another device"
                self.bound[load.version] = load.device
            for victim in load.victims:
                readers = [r for (v, _), r in self.residents.items() if v == victim.version and r.source == load.device]
                assert not readers, "a copy left that another device reads"
                assert self.residents.pop((victim.version, load.device)).phase is Phase.RESTING
            assert (load.version, load.device) not in self.residents
            self.check_in_use(load)
            for victim in load.victims:
                elsewhere = [r for (v, _), r in self.residents.items() if v == victim.version]
                assert elsewhere or victim.version not in self.stay, "a pinned model left"
            if load.source in self.devices:
                assert self.residents[load.version, load.source].phase in (Phase.RESTING, Phase.EXECUTING)
            self.residents[load.version, load.device] = Resident(
                load.version, load.device, Phase.LOADING, source=load.source
            )
            self.swaps += 1
            self.at(self.now + self.load_s, "loaded", load.version, load.device)
        for refusal in decision.refusals:
            self.refuse(refusal)
        for grant in decision.grants:
            self.grant(grant)
        if decision.wake_at is not None:
            assert decision.wake_at > self.now
            # One that is due earlier decides anew.
            if decision.wake_at < self.wakes:
                self.wakes = decision.wake_at
                self.at(decision.wake_at, "wake")

    def check_in_use(self, load: Load) -> None:
        """What leaves for a further copy of a model would not have to come back."""
        if any(r.version == load.version and r.phase is not Phase.LEAVING for r in self.residents.values()):
            for victim in load.victims:
                assert all(request.version != victim.version for request in self.waiting), "a request waits for it"

    def refuse(self, refusal: Refusal) -> None:
        """Checks that no device has room, and ends what waits for the model."""
        assert self.settings.binding is Binding.EARLY
        model = self.models[refusal.version]
        for name, capacity in self.devices.items():
            here = [model, *(self.models[r.version] for r in self.residents.values() if r.device == name)]
            assert sum(m.size_bytes for m in here) + max(m.working_bytes for m in here) > capacity
        gone = [w for w in self.waiting if w.version == refusal.version]
        self.refused += [self.tickets[w.ticket] for w in gone]
        self.waiting = [w for w in self.waiting if w.version != refusal.version]

    def grant(self, grant: Grant) -> None:
        request = next(w for w in self.waiting if w.ticket == grant.ticket)
        self.waiting.remove(request)
        if request.tapes:
            assert not grant.instance
        else:
            assert grant.instance not in self.working
            assert self.instances[grant.instance] == request.version
            self.working[grant.instance] = grant.device
        if grant.device != HOST:
            assert grant.device not in self.busy
            key = (request.version, grant.device)
            assert self.residents[key].phase is Phase.RESTING
            self.residents[key] = replace(self.residents[key], phase=Phase.EXECUTING)
            self.busy[grant.device] = grant
        self.granted[self.tickets[grant.ticket]] = self.now
        self.at(self.now + self.execute_s, "done", grant.instance, grant.device, request.version)

    def check(self) -> None:
        for name, capacity in self.devices.items():
            here = [self.models[r.version] for r in self.residents.values() if r.device == name]
            assert sum(m.size_bytes for m in here) + max((m.working_bytes for m in here), default=0) <= capacity

    def waited(self, name: int) -> float:
        return self.granted[name] - self.arrived[name]
