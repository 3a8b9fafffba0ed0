"""Models that share devices too small for all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from rouse_common.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    RouseError,
    Unavailable,
)
from rouse_contracts import device as contract
from rouse_testkit.gpu import MadeModel, make_model

if TYPE_CHECKING:
    from conftest import Node

KIB = 1024


async def test_a_request_swaps_its_model_in_and_the_next_one_finds_it_attached(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB, 5])
    executor = await node.deploy(model)
    assert await node.states() == {"a-v1": "HOST"}

    first = await node.use(model)
    assert first.swapped_in
    assert first.device == "d0"
    assert first.swap_ms > 0
    assert "idle" in first.reason
    assert await node.states() == {"a-v1": "DEVICE d0"}
    assert node.mapped_on_disk() == (await node.describe()).devices[0].mapped_bytes > 300 * KIB

    attached = executor.calls["Attach"]
    second = await node.use(model)
    assert not second.swapped_in
    assert second.swap_ms == 0
    assert executor.calls["Attach"] == attached == 1
    assert second.lease_id.partition("/")[0] == first.lease_id.partition("/")[0]
    assert second.lease_id != first.lease_id


async def test_an_eviction_makes_room_and_gives_the_memory_back(node: Node) -> None:
    await node.start()
    a, b = make_model("a", [600 * KIB]), make_model("b", [700 * KIB])
    executor = await node.deploy(a)
    await node.deploy(b)
    await node.use(a)
    lease = await node.use(b)
    assert lease.swapped_in
    assert "1 of 1 resting models leave" in lease.reason
    assert await node.states() == {"a-v1": "HOST", "b-v1": "DEVICE d0"}
    assert executor.mapped is None
    assert len(node.segments()) == 1
    described = await node.describe()
    assert node.mapped_on_disk() == described.devices[0].mapped_bytes == 700 * KIB
    assert described.devices[0].eviction_count == 1
    assert described.devices[0].swap_in_count == 2
    rows = {row.version_id: row for row in described.residency}
    assert rows["b-v1"].swap_in_count == 1
    assert rows["a-v1"].node_id == "n1"
    assert (await node.use(a)).swapped_in
    assert {row.version_id: row.swap_in_count for row in (await node.describe()).residency} == {"a-v1": 2, "b-v1": 1}


async def test_concurrent_requests_share_one_load(node: Node) -> None:
    await node.start()
    model = make_model("a", [900 * KIB])
    await node.deploy(model, instances=3)
    leases = await asyncio.gather(*(node.use(model) for _ in range(6)))
    assert (await node.describe()).devices[0].swap_in_count == 1
    assert len({lease.lease_id for lease in leases}) == 6


async def test_a_load_overlaps_an_execution(node: Node) -> None:
    await node.start()
    a, b = make_model("a", [400 * KIB]), make_model("b", [400 * KIB])
    await node.deploy(a)
    await node.deploy(b)
    held = await node.acquire(a)
    getting = asyncio.create_task(node.acquire(b))
    await node.becomes({"a-v1": "EXECUTING d0", "b-v1": "DEVICE d0"})
    assert not getting.done(), "the device computes for one at a time"
    await node.release(held)
    lease = await getting
    assert lease.swapped_in
    await node.release(lease)


async def test_an_executing_model_is_never_evicted(node: Node) -> None:
    await node.start()
    a, b = make_model("a", [600 * KIB]), make_model("b", [600 * KIB])
    executor = await node.deploy(a)
    await node.deploy(b)
    held = await node.acquire(a)
    with pytest.raises(DeadlineExceeded) as late:
        await node.acquire(b, timeout_s=0.3)
    assert late.value.reason in ("DEVICE_WAIT_TIMEOUT", "DEADLINE_EXCEEDED")
    assert executor.mapped is not None
    assert await node.states() == {"a-v1": "EXECUTING d0", "b-v1": "HOST"}
    await node.release(held)
    assert (await node.use(b)).swapped_in


async def test_two_devices_compute_at_once(node: Node) -> None:
    await node.start(device=("host:d0=1MiB", "host:d1=1MiB"))
    a, b = make_model("a", [600 * KIB]), make_model("b", [600 * KIB])
    await node.deploy(a)
    await node.deploy(b)
    leases = [await node.acquire(a), await node.acquire(b)]
    assert {lease.device for lease in leases} == {"d0", "d1"}
    assert [d.executing for d in (await node.describe()).devices] == ["a", "b"]
    for lease in leases:
        await node.release(lease)


async def test_an_executor_moves_to_another_device_that_is_free(node: Node) -> None:
    await node.start(device=("host:d0=1MiB", "host:d1=1MiB"))
    a, b = make_model("a", [200 * KIB]), make_model("b", [200 * KIB])
    executor = await node.deploy(a)
    await node.use(a)
    await node.deploy(b)
    blocking = await node.acquire(b)
    other = await node.acquire(a)
    assert {blocking.device, other.device} == {"d0", "d1"}
    assert (await node.execute(other)).outputs == a.image
    await node.release(blocking)
    await node.release(other)
    assert executor.calls["Attach"] >= 1


async def test_a_model_larger_than_every_device_is_refused_at_once(node: Node) -> None:
    await node.start()
    weights = make_model("w", [1100 * KIB])
    node.repository.add(weights)
    with pytest.raises(FailedPrecondition) as refused:
        await node.stage(weights)
    assert refused.value.reason == "MODEL_TOO_LARGE"
    assert not node.repository.served, "nothing was fetched for it"
    working = make_model("x", [600 * KIB], working_bytes=600 * KIB)
    await node.executor(working)
    node.repository.add(working)
    await node.sync()
    with pytest.raises(FailedPrecondition) as refused:
        await node.acquire(working)
    assert refused.value.reason == "MODEL_TOO_LARGE"
    assert refused.value.metadata["function"] == "x"


async def test_working_memory_is_reserved_while_a_lease_is_held_and_makes_others_leave(node: Node) -> None:
    await node.start()
    a, b = make_model("a", [400 * KIB]), make_model("b", [400 * KIB], working_bytes=300 * KIB)
    await node.deploy(a)
    await node.deploy(b)
    await node.use(a)
    lease = await node.acquire(b)
    device = (await node.describe()).devices[0]
    assert device.reserved_bytes == 300 * KIB
    assert await node.states() == {"a-v1": "HOST", "b-v1": "EXECUTING d0"}
    await node.release(lease)
    assert (await node.describe()).devices[0].reserved_bytes == 0


async def test_a_function_without_weights_takes_no_device(node: Node) -> None:
    await node.start()
    plain, busy = make_model("plain", []), make_model("busy", [500 * KIB])
    await node.deploy(busy)
    executor = await node.deploy(plain)
    held = await node.acquire(busy)
    lease = await node.acquire(plain)
    assert lease.device == "host"
    assert not lease.swapped_in
    assert (await node.execute(lease)).outputs == b""
    await node.release(lease)
    await node.use(plain)
    assert executor.calls["Attach"] == 1
    await node.release(held)


async def test_the_waiting_list_is_bounded(node: Node) -> None:
    await node.start(max_waiting=2)
    model = make_model("a", [100 * KIB])
    await node.deploy(model)
    held = await node.acquire(model)
    others = [asyncio.create_task(node.acquire(model)) for _ in range(2)]
    await node.has_waiting(2)
    with pytest.raises(ResourceExhausted) as full:
        await node.acquire(model)
    assert full.value.reason == "DEVICE_WAIT_FULL"
    assert full.value.retry_after_s
    await node.release(held)
    for task in asyncio.as_completed(others):
        await node.release(await task)


async def test_requests_of_a_model_are_served_in_the_order_of_arrival(node: Node) -> None:
    await node.start()
    model = make_model("a", [100 * KIB])
    await node.deploy(model)
    held, order, tasks = await node.acquire(model), [], []

    async def ask(number: int) -> None:
        lease = await node.acquire(model)
        order.append(number)
        await node.release(lease)

    for number in range(5):
        tasks.append(asyncio.create_task(ask(number)))
        await node.has_waiting(number + 1)
    await node.release(held)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]


async def test_a_cancelled_request_leaves_the_list_and_takes_nothing(node: Node) -> None:
    await node.start()
    model = make_model("a", [100 * KIB])
    await node.deploy(model)
    held = await node.acquire(model)
    doomed = asyncio.create_task(node.acquire(model))
    await node.has_waiting(1)
    doomed.cancel()
    await node.has_waiting(0)
    await node.release(held)
    assert (await node.describe()).devices[0].executing == ""
    await node.use(model)


async def test_without_an_executor_a_request_is_refused(node: Node) -> None:
    await node.start()
    model = make_model("a", [100 * KIB])
    await node.sync()
    with pytest.raises(Unavailable) as refused:
        await node.acquire(model)
    assert refused.value.reason == "NO_EXECUTOR"


async def test_before_the_first_list_of_executors_a_request_waits_for_it(node: Node) -> None:
    await node.start()
    model, other = make_model("a", [100 * KIB]), make_model("b", [100 * KIB])
    node.repository.add(model)
    early, hopeless = asyncio.create_task(node.acquire(model)), asyncio.create_task(node.acquire(other))
    await node.has_waiting(2)
    await node.executor(model)
    await node.sync()
    await node.release(await early)
    with pytest.raises(Unavailable, match="no instance"):
        await hopeless


async def test_a_failed_swap_rolls_back_and_its_requests_hear_why(node: Node) -> None:
    await node.start()
    a, b = make_model("a", [300 * KIB]), make_model("b", [300 * KIB])
    await node.deploy(a)
    await node.deploy(b)
    await node.use(b)
    image = node.memory / "host" / f"{a.artefact.digest}.img"
    whole = image.read_bytes()
    image.chmod(0o600)
    image.write_bytes(whole[: 100 * KIB])
    with pytest.raises(RouseError) as failed:
        await node.acquire(a)
    assert failed.value.reason == "SOURCE_TRUNCATED"
    described = await node.describe()
    assert described.devices[0].mapped_bytes == node.mapped_on_disk() == 300 * KIB
    assert described.devices[0].reserved_bytes == 0
    image.write_bytes(whole)
    await node.use(a)


async def test_an_executor_that_refuses_attachments_is_ended(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    bad = await node.deploy(model)
    bad.attach_error = Internal("ATTACH_FAILED", "cannot map")
    good = await node.executor(model)
    await node.sync()
    for _ in range(4):
        await node.use(model)
    assert good.calls["Execute"] == 4
    # The other one is only needed, and found out, when both are asked for.
    leases = [asyncio.create_task(node.use(model)) for _ in range(2)]
    await asyncio.gather(*leases)
    assert bad.calls["Execute"] == 0


async def test_an_executor_that_refuses_every_attachment_leaves_no_lease_behind(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    bad = await node.deploy(model)
    bad.attach_error = Internal("ATTACH_FAILED", "cannot map")
    with pytest.raises(Unavailable) as refused:
        await node.acquire(model)
    assert refused.value.reason == "NO_EXECUTOR"
    assert [ended.instance_id for ended in node.coordinator.ended] == [bad.instance_id]
    assert "3 attachments" in node.coordinator.ended[0].reason
    device = (await node.describe()).devices[0]
    assert device.executing == ""
    assert device.reserved_bytes == 0


async def test_dropping_a_version_gives_everything_back_after_what_executes(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    executor = await node.deploy(model)
    lease = await node.acquire(model)
    waiter = asyncio.create_task(node.acquire(model))
    await node.has_waiting(1)
    dropping = asyncio.create_task(node.drop(model))
    with pytest.raises(Unavailable) as refused:
        await waiter
    assert refused.value.reason == "NO_EXECUTOR"
    assert not dropping.done()
    await node.release(lease)
    freed = await dropping
    assert freed.device_freed_bytes == freed.host_freed_bytes == 300 * KIB
    assert freed.disk_freed_bytes == model.artefact.size_bytes
    assert executor.mapped is None
    assert not node.segments()
    assert not list((node.memory / "host").iterdir())
    assert not list((node.folder / "cache" / "blobs").iterdir())
    described = await node.describe()
    assert not described.residency
    assert described.host_used_bytes == described.disk_used_bytes == 0
    assert await node.drop(model) == contract.DropVersionResponse()


async def test_a_tenant_with_many_functions_does_not_keep_another_one_from_the_devices(node: Node) -> None:
    await node.start()
    models = [make_model(name, [100 * KIB]) for name in ("a0", "a1", "a2", "a3", "b")]
    for model in models:
        await node.deploy(model)
        await node.use(model)
    *flood, late = models
    held = await node.acquire(flood[0], tenant="flood")
    granted: list[str] = []

    async def ask(model: MadeModel, tenant: str, weight: int) -> None:
        lease = await node.acquire(model, tenant=tenant, tenant_weight=weight)
        granted.append(model.version.spec.name)
        await node.release(lease)

    async with asyncio.TaskGroup() as tasks:
        for position, model in enumerate(flood[1:], start=1):
            tasks.create_task(ask(model, "flood", 1))
            await node.has_waiting(position)
        tasks.create_task(ask(late, "late", 1))
        await node.has_waiting(4)
        await node.release(held)
    # All are on the device, and it came last: it goes first, for its tenant had nothing yet.
    assert granted == ["b", "a1", "a2", "a3"]
