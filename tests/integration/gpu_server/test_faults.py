"""Executors that hang or die, routers and servers that restart, memory that runs out."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from rouse_common.config import ConfigError
from rouse_common.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted, RouseError, Unavailable
from rouse_common.rpc import call
from rouse_contracts import device as contract
from rouse_testkit.gpu import make_model

if TYPE_CHECKING:
    from conftest import Node

KIB = 1024


async def abandon(node: Node, lease: contract.AcquireResponse) -> None:
    await node.release(lease, abandoned=True)


async def test_an_executor_that_dies_while_leased_frees_its_device_and_the_copy_stays(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    first = await node.deploy(model)
    lease = await node.acquire(model)
    waiter = asyncio.create_task(node.acquire(model))
    await node.has_waiting(1)
    await first.die()
    await abandon(node, lease)
    with pytest.raises(Unavailable) as refused:
        await waiter
    assert refused.value.reason == "NO_EXECUTOR"
    assert await node.states() == {"a-v1": "DEVICE d0"}
    await node.executor(model, "second")
    del node.executors[first.instance_id]
    await node.sync()
    again = await node.use(model)
    assert again.instance_id == "second"
    assert not again.swapped_in


async def test_an_executor_that_the_coordinator_no_longer_names_is_gone(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    executor = await node.deploy(model)
    lease = await node.acquire(model)
    del node.executors[executor.instance_id]
    await node.sync()
    device = (await node.describe()).devices[0]
    assert device.executing == ""
    assert device.residents[0].state == "DEVICE"
    await node.release(lease)


async def test_an_abandoned_lease_keeps_the_device_until_the_executor_is_idle(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    executor = await node.deploy(model)
    executor.hold.clear()
    lease = await node.acquire(model)
    with pytest.raises(DeadlineExceeded):
        await node.execute(lease, timeout_s=0.2)
    await abandon(node, lease)
    following = asyncio.create_task(node.acquire(model))
    await node.has_waiting(1)
    assert (await node.describe()).devices[0].executing == "a"
    executor.hold.set()
    new = await following
    assert new.lease_id.split("/")[0] != lease.lease_id.split("/")[0]
    with pytest.raises(FailedPrecondition) as stale:
        await node.execute(lease)
    assert stale.value.reason == "STALE_LEASE"
    await node.release(new)
    assert not node.coordinator.ended


async def test_an_executor_that_hangs_past_the_limit_is_ended_and_only_then_its_memory_freed(node: Node) -> None:
    await node.start(detach_limit_s=0.4)
    a, b = make_model("a", [600 * KIB]), make_model("b", [600 * KIB])
    executor = await node.deploy(a)
    await node.deploy(b)
    executor.hold.clear()
    lease = await node.acquire(a)
    with pytest.raises(DeadlineExceeded):
        await node.execute(lease, timeout_s=0.1)
    segment = node.segments()[0]
    await abandon(node, lease)
    taking = asyncio.create_task(node.acquire(b))
    await node.has_waiting(1)
    assert segment.exists()
    assert executor.mapped is not None
    taken = await taking
    assert [ended.instance_id for ended in node.coordinator.ended] == [executor.instance_id]
    assert executor.mapped is None
    assert not segment.exists()
    await node.release(taken)
    assert await node.states() == {"a-v1": "HOST", "b-v1": "DEVICE d0"}


async def test_an_eviction_that_hangs_lets_the_request_use_another_device(node: Node) -> None:
    await node.start(device=("host:d0=1MiB", "host:d1=1MiB"), detach_limit_s=0.3)
    a, b, c = (make_model(name, [900 * KIB]) for name in "abc")
    stuck = await node.deploy(a)
    other = await node.deploy(b)
    await node.deploy(c)
    await node.use(a)
    await node.use(b)
    # The coordinator cannot end it either.
    stuck.hang_detach = True
    node.coordinator.failure = Unavailable("AWAY", "the coordinator restarts")
    lease = await node.use(c, timeout_s=8)
    states = await node.states()
    assert lease.device == states["c-v1"].split()[1] != states["a-v1"].split()[1]
    assert stuck.mapped is not None
    assert other.mapped is None
    await node.until(lambda view: any("being evicted" in r.reason for r in view.residency))
    # The coordinator is back: the memory comes free once the process is gone.
    node.coordinator.failure = None
    await node.becomes({"a-v1": "HOST", "b-v1": "HOST", "c-v1": states["c-v1"]})
    assert stuck.mapped is None


async def test_a_lease_expires_with_its_request(node: Node) -> None:
    await node.start(lease_margin_s=0.1)
    model = make_model("a", [100 * KIB])
    executor = await node.deploy(model)
    await node.acquire(model, timeout_s=0.4)
    await node.until(lambda view: view.devices[0].executing == "")
    assert executor.calls["Detach"] == 2, "at first sight, and to make sure that it is idle"
    await node.use(model)


async def test_a_lease_may_be_kept_for_longer_than_it_was_waited_for(node: Node) -> None:
    await node.start(lease_margin_s=0.1, device=("host:d0=1MiB", "host:d1=1MiB"))
    kept, expires = make_model("a", [600 * KIB]), make_model("b", [600 * KIB])
    for model in (kept, expires):
        await node.deploy(model)
    lease = await node.acquire(kept, timeout_s=0.4, hold_s=30)
    await node.acquire(expires, timeout_s=0.4)
    # The younger one has ended by itself: the older one would have too.
    await node.until(lambda view: sum(bool(d.executing) for d in view.devices) == 1)
    await node.execute(lease)
    await node.release(lease)


async def test_who_wants_one_instance_waits_for_it_alone_and_hears_when_it_is_gone(node: Node) -> None:
    await node.start(device=("host:d0=1MiB", "host:d1=1MiB"))
    model = make_model("a", [100 * KIB])
    await node.deploy(model, instances=2)
    first = await node.acquire(model)
    bound = asyncio.create_task(node.acquire(model, instance_id=first.instance_id))
    await node.has_waiting(1)
    other = await node.acquire(model)
    assert other.instance_id != first.instance_id
    await node.release(other)
    await node.release(first)
    assert (await bound).instance_id == first.instance_id
    waits = asyncio.create_task(node.acquire(model, instance_id=first.instance_id))
    await node.has_waiting(1)
    del node.executors[first.instance_id]
    await node.sync()
    for asked in (waits, asyncio.create_task(node.acquire(model, instance_id=first.instance_id))):
        with pytest.raises(Unavailable) as gone:
            await asked
        assert gone.value.reason == "INSTANCE_GONE"
    await node.use(model)


async def test_a_router_that_restarted_gives_back_the_leases_of_its_earlier_life(node: Node) -> None:
    await node.start(device=("host:d0=1MiB", "host:d1=1MiB", "host:d2=1MiB"))
    models = [make_model(name, [600 * KIB]) for name in "abc"]
    for model in models:
        await node.deploy(model)
    await node.acquire(models[0], incarnation="old")
    kept = await node.acquire(models[1], incarnation="new")
    other = await node.acquire(models[2], owner="someone else", incarnation="old")
    request = contract.ReleaseAllRequest(owner="router", incarnation="new")
    assert (await call(node.stub.ReleaseAll, request, timeout_s=5)).released == 1
    await node.until(lambda view: sum(bool(d.executing) for d in view.devices) == 2)
    assert (await call(node.stub.ReleaseAll, request, timeout_s=5)).released == 0
    for lease in (kept, other):
        await node.execute(lease)
        await node.release(lease)
        await node.release(lease)
    assert not any(d.executing for d in (await node.describe()).devices)


async def test_an_acquire_whose_answer_was_lost_is_given_back_by_its_own_id(node: Node) -> None:
    await node.start()
    model = make_model("a", [100 * KIB])
    await node.deploy(model)
    await node.acquire(model, acquire_id="first")
    second = asyncio.create_task(node.acquire(model, acquire_id="second"))
    await node.has_waiting(1)
    await node.give_back(acquire_id="second")
    with pytest.raises(RouseError) as ended:
        await second
    assert ended.value.reason == "GIVEN_UP"
    await node.give_back(acquire_id="first")
    await node.use(model)


async def test_after_a_restart_executors_are_detached_first_and_images_are_found_again(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    executor = await node.deploy(model)
    await node.use(model)
    old = executor.attachment
    assert old is not None
    fetched = dict(node.repository.served)
    await node.stop()
    assert not node.segments(), "the devices are empty when nobody owns them"
    await node.repository.stop()
    await node.start()
    await node.sync()
    lease = await node.use(model)
    assert lease.swapped_in
    assert executor.calls["Attach"] == 2
    assert dict(node.repository.served) == fetched, "the image in host memory outlived gpu-server"


async def test_segments_that_a_killed_server_left_are_purged(node: Node) -> None:
    left = node.memory / "d0"
    left.mkdir()
    (left / "old.seg").write_bytes(b"x" * 4096)
    renamed = node.memory / "was-d1"
    renamed.mkdir()
    (renamed / "old.seg").write_bytes(b"x")
    half = node.memory / "host"
    half.mkdir()
    (half / f"{'0' * 64}.tmp").write_bytes(b"x")
    (half / f"{'1' * 64}.img").write_bytes(b"x")
    await node.start()
    assert not node.segments()
    assert not list(renamed.iterdir())
    assert not list(half.iterdir())


async def test_an_image_of_another_size_is_built_anew(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    await node.deploy(model)
    await node.stop()
    image = node.memory / "host" / f"{model.artefact.digest}.img"
    os.truncate(image, 4096)
    await node.start()
    await node.sync()
    await node.use(model)


async def test_stopping_refuses_who_waits_and_takes_no_time(node: Node) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    executor = await node.deploy(model)
    await node.acquire(model)
    executor.hang_detach = True
    waiter = asyncio.create_task(node.acquire(model))
    await node.has_waiting(1)
    async with asyncio.timeout(4):
        await node.stop()
    with pytest.raises(Unavailable) as refused:
        await waiter
    assert refused.value.reason == "NODE_STOPPING"


async def test_a_full_tmpfs_is_an_error_and_leaves_nothing_behind(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.start()
    model = make_model("a", [300 * KIB])
    await node.deploy(model)

    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(ResourceExhausted) as refused:
            await node.acquire(model)
    assert refused.value.reason == "DEVICE_MEMORY_FULL"
    assert refused.value.metadata["device"] == "d0"
    assert not node.segments()
    device = (await node.describe()).devices[0]
    assert device.mapped_bytes == device.reserved_bytes == 0
    await node.use(model)


async def test_a_second_server_in_the_same_folder_does_not_start(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from rouse_gpu_server.adapters import memory_dir

    monkeypatch.setattr(memory_dir, "LOCK_WAIT_S", 0.0)
    await node.start()
    with pytest.raises(ConfigError, match="another gpu-server uses this folder"):
        await node.start()


async def test_memory_that_the_machine_does_not_have_stops_the_start(node: Node) -> None:
    with pytest.raises(ConfigError, match=r"lower --device or --host-memory by \d+ MiB"):
        await node.start(device=("host:d0=900TiB",))
    with pytest.raises(ConfigError, match="want a tmpfs"):
        await node.start(device=("host:d0=1MiB",), memory_dir=str(node.folder / "on-disk"))
