"""A node under arbitrary orders, failures and deaths: memory adds up, nothing in use is taken away, and every
request for a device ends exactly once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from rouse_common.errors import RouseError
from rouse_contracts.functions import EXECUTION_ROUSE
from rouse_gpu_server.logic.leasing import Call, Granted
from rouse_gpu_server.state.residency import Tier
from rouse_testkit.gpu import make_model

if TYPE_CHECKING:
    from conftest import Bench, Instance

PAGE = 4096
CAPACITIES = {"d0": 10, "d1": 13}
# Pages of weights and of working memory.
SHAPES = {"small": (2, 0), "middle": (5, 2), "large": (8, 1), "huge": (12, 1), "plain": (0, 0)}
VERSIONS = st.sampled_from([f"{name}-v1" for name in SHAPES])
# Has tapes and no instance.
TAPED, TAPED_SHAPE, KEY = "taped-v1", (4, 1), "x:FP32:1;"
STEPS = st.sampled_from(
    ["allocate", "copy", "copied", "attach", "attached", "detach", "end", "get_artefact", "get_blob"]
) | st.sampled_from(["map", "mapped", "load_tape"])
DEADLINE_S = 1000.0
PICK = st.integers(0, 1000)


class NodeMachine(RuleBasedStateMachine):
    bench_type: type[Bench]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.bench = self.bench_type(CAPACITIES, loads_per_device=2)
        self.runner.run(self.bench.__aenter__())
        for name, (weights, working) in SHAPES.items():
            tensors = [weights * PAGE - 100] if weights else []
            self.bench.make(make_model(name, tensors, working_bytes=working * PAGE))
        self.asked: list[asyncio.Task[Granted]] = []
        self.held: list[Granted] = []
        self.drops: list[asyncio.Task[Any]] = []
        self.stagings: list[asyncio.Task[None]] = []
        self.outcomes = 0
        self.bench.sync()
        for version in self.bench.models:
            self.start_instance(version)
        taped = make_model("taped", [TAPED_SHAPE[0] * PAGE - 100], working_bytes=TAPED_SHAPE[1] * PAGE)
        taped.version.spec.execution = EXECUTION_ROUSE
        taped.version.addresses.base = 1 << 40
        self.bench.make(taped)
        self.stage_taped()

    def go(self) -> None:
        self.runner.run(self.settle())

    async def settle(self) -> None:
        """Everything that can happen does; answers are taken in, once each."""
        await self.bench.quiesce()
        for task in [t for t in self.asked if t.done()]:
            self.asked.remove(task)
            self.outcomes += 1
            if not task.cancelled() and task.exception() is None:
                self.held.append(task.result())
            else:
                assert task.cancelled() or isinstance(task.exception(), RouseError)
        for drop in [d for d in self.drops if d.done()]:
            self.drops.remove(drop)
            drop.result()

    # ---- orders ----

    @rule(version=VERSIONS)
    def acquire(self, version: str) -> None:
        async def ask() -> None:
            call = Call(version, f"r{len(self.asked)}", "router", "1")
            self.asked.append(asyncio.create_task(self.bench.leasing.acquire(call, DEADLINE_S)))

        self.runner.run(ask())
        self.go()

    @rule()
    def stage_taped(self) -> None:
        async def stage() -> None:
            with contextlib.suppress(RouseError):
                await self.bench.membership.stage_version(self.bench.models[TAPED].version)

        async def begin() -> None:
            self.stagings.append(asyncio.create_task(stage()))

        self.runner.run(begin())
        self.go()

    @rule()
    def acquire_tapes(self) -> None:
        async def ask() -> None:
            call = Call(TAPED, f"r{len(self.asked)}", "router", "1", tape_key=KEY)
            self.asked.append(asyncio.create_task(self.bench.leasing.acquire(call, DEADLINE_S)))

        self.runner.run(ask())
        self.go()

    @rule(pages=st.integers(0, 20))
    def tapes_need_more(self, pages: int) -> None:
        def measure() -> None:
            self.bench.pool.measured(TAPED, pages * PAGE)
            self.bench.wakeup.kick()

        self.in_loop(measure)
        self.go()

    @precondition(lambda self: self.asked)
    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        self.asked[pick % len(self.asked)].cancel()
        self.go()

    @rule(version=VERSIONS, ticks=st.integers(0, 12))
    def give_up_soon(self, version: str, ticks: int) -> None:
        async def ask() -> None:
            call = Call(version, "r-soon", "router", "1")
            asking = asyncio.create_task(self.bench.leasing.acquire(call, DEADLINE_S))
            self.asked.append(asking)
            for _ in range(ticks):
                await asyncio.sleep(0)
            asking.cancel()

        self.runner.run(ask())
        self.go()

    @precondition(lambda self: self.held)
    @rule(pick=PICK, abandoned=st.booleans(), twice=st.booleans())
    def release(self, pick: int, abandoned: bool, twice: bool) -> None:
        granted = self.held.pop(pick % len(self.held))
        # Only who knows that the executor is idle may say so.
        if granted.lease.executor.is_instance:
            abandoned |= bool(self.bench.neighbours.instances[granted.lease.executor.address].works_on)
        for _ in range(1 + twice):
            self.in_loop(lambda: self.bench.leasing.release(granted.lease.lease_id, 1.0, abandoned))
        self.go()

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.in_loop(lambda: self.bench.pass_time(seconds))
        self.go()

    @rule()
    def deadlines_pass(self) -> None:
        for task in self.asked:
            task.cancel()
        self.in_loop(lambda: self.bench.pass_time(DEADLINE_S + 10))
        self.go()

    @rule(version=VERSIONS)
    def start_instance(self, version: str) -> None:
        self.in_loop(lambda: (self.bench.start_instance(version), self.bench.sync()))
        self.go()

    @rule(version=VERSIONS | st.just(TAPED))
    def drop(self, version: str) -> None:
        async def order() -> None:
            digest = self.bench.models[version].artefact.digest
            self.drops.append(asyncio.create_task(self.bench.membership.drop_version(version, digest)))

        self.runner.run(order())
        self.go()

    # ---- faults ----

    @rule(step=STEPS)
    def fails_next(self, step: str) -> None:
        self.bench.neighbours.fail.add(step)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def works(self, pick: int) -> None:
        lease = self.held[pick % len(self.held)].lease
        if not lease.executor.is_instance:
            return
        instance = self.bench.neighbours.instances[lease.executor.address]
        if not instance.dead and lease.lease_id in self.bench.pool.leases and not lease.ending:
            instance.hung, instance.works_on = True, lease.device_name

    @rule(pick=PICK)
    def hangs(self, pick: int) -> None:
        self.any_instance(pick).hung = True

    @rule(pick=PICK)
    def goes_on(self, pick: int) -> None:
        instance = self.any_instance(pick)
        instance.hung, instance.works_on = False, ""
        self.go()

    @rule(pick=PICK, noticed=st.booleans())
    def dies(self, pick: int, noticed: bool) -> None:
        self.bench.neighbours.kill(self.any_instance(pick))
        if noticed:
            self.in_loop(self.bench.sync)
        self.go()

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def dies_at_work(self, pick: int) -> None:
        lease = self.held[pick % len(self.held)].lease
        if not lease.executor.is_instance:
            self.kill_core(lease.device_name)
            return
        self.bench.neighbours.kill(self.bench.neighbours.instances[lease.executor.address])
        self.in_loop(self.bench.sync)
        self.go()

    @rule(device=st.sampled_from(sorted(CAPACITIES)))
    def kill_core(self, device: str) -> None:
        self.in_loop(lambda: self.bench.kill_core(device))
        self.go()

    @rule()
    def coordinator_syncs(self) -> None:
        self.in_loop(self.bench.sync)
        self.go()

    def any_instance(self, pick: int) -> Instance:
        instances = list(self.bench.neighbours.instances.values())
        return instances[pick % len(instances)]

    def in_loop(self, action: Any) -> None:
        async def act() -> None:
            action()

        self.runner.run(act())

    # ---- what always holds ----

    @invariant()
    def memory_adds_up(self) -> None:
        self.bench.check_memory()

    @invariant()
    def what_is_kept_is_in_the_ledger_once_others_can_leave(self) -> None:
        for device in self.bench.pool.devices.values():
            resting = all(r.state is Tier.DEVICE for r in device.residents.values())
            assert not (resting and device.lease is None) or device.owed_bytes == 0

    @invariant()
    def who_holds_a_lease_can_execute(self) -> None:
        for granted in self.held:
            lease = granted.lease
            if lease.lease_id in self.bench.pool.leases and not lease.ending:
                if lease.executor.is_instance:
                    self.bench.check_lease(lease.lease_id, lease.executor.instance_id)
                else:
                    self.bench.check_tape_lease(lease)

    @invariant()
    def a_device_computes_for_one(self) -> None:
        devices = [x.device_name for x in self.bench.pool.leases.values() if x.resident is not None]
        assert len(devices) == len(set(devices))

    @invariant()
    def a_device_is_not_granted_while_somebody_works_on_it(self) -> None:
        for instance in self.bench.neighbours.instances.values():
            device = self.bench.pool.devices.get(instance.works_on)
            if device is not None:
                assert device.lease is not None
                assert device.lease.executor.instance_id == instance.message.instance_id

    @invariant()
    def every_lease_has_a_holder_and_an_executor(self) -> None:
        held = {granted.lease.lease_id for granted in self.held}
        for lease in self.bench.pool.leases.values():
            assert lease.ending or lease.lease_id in held
            assert lease.executor.alive

    def teardown(self) -> None:
        try:
            self.recover()
        finally:
            self.runner.run(self.bench.__aexit__())
            self.runner.close()

    def recover(self) -> None:
        """Once nothing fails any more, everybody who waits is answered and memory comes free."""
        self.bench.neighbours.fail.clear()
        for instance in self.bench.neighbours.instances.values():
            instance.hung, instance.works_on = False, ""
        for _ in range(100):
            self.in_loop(self.bench.sync)
            while self.held:
                lease = self.held.pop().lease
                self.in_loop(lambda lease=lease: self.bench.leasing.release(lease.lease_id, 1.0, False))
            self.in_loop(lambda: self.bench.pass_time(1.0))
            self.go()
            if not self.asked and not self.held and not self.drops and not self.bench.pool.leases:
                break
        assert not self.asked, "a request waits for ever"
        assert not self.drops
        assert not self.bench.pool.leases
        assert not len(self.bench.pool.waiting)
        for version in list(self.bench.models):
            self.drop(version)
        self.go()
        assert not self.drops
        assert all(staging.done() for staging in self.stagings)
        assert not any(core.images for core in self.bench.cores.values())
        for device in self.bench.pool.devices.values():
            assert device.ledger.mapped_bytes == device.ledger.reserved_bytes == device.backend.used_bytes() == 0
        assert self.bench.stager.host_used_bytes == self.bench.stager.disk_used_bytes == 0


def test_a_node_survives_any_order_of_events(make_bench: type[Bench]) -> None:
    machine = type("Machine", (NodeMachine,), {"bench_type": make_bench})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
