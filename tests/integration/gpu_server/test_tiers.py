"""Sleeping models on disk: who leaves host memory in time, and comes back for a request or ahead of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rouse_testkit.gpu import MadeModel, make_model

if TYPE_CHECKING:
    from conftest import Node

MIB = 2**20
# A model of 1 MiB in 64 MiB breaks even after 64 times its return, which takes milliseconds.
QUICK = {"host_memory": "64MiB", "host_min_idle_s": 0.3, "host_look_s": 0.05, "host_weight": 0.01, "stage_hold_s": 0.0}


async def started(node: Node, name: str) -> MadeModel:
    node.settings |= QUICK
    await node.start()
    model = make_model(name, [MIB])
    await node.deploy(model)
    await node.use(model)
    return model


async def test_a_model_that_nothing_serves_leaves_host_memory_and_a_deployment_brings_it_back(node: Node) -> None:
    model = await started(node, "sleepy")
    image = node.memory / "host" / f"{model.artefact.digest}.img"
    assert image.exists()
    node.executors.clear()
    await node.sync()
    # The state comes first, so that nobody uses the image any more; then its memory is given back.
    await node.becomes({model.version.version_id: "DISK"})
    await node.until(lambda view: view.host_used_bytes == 0)
    assert not image.exists()
    described = await node.describe()
    assert described.devices[0].mapped_bytes == 0
    assert "sleeps on disk: idle for" in described.residency[0].reason
    assert described.disk_used_bytes == model.artefact.size_bytes
    # All that it takes to be used again is on the disk.
    await node.repository.stop()
    await node.stage(model)
    await node.executor(model)
    await node.sync()
    await node.use(model)
    assert image.exists()


async def test_what_an_instance_serves_stays(node: Node) -> None:
    served = await started(node, "served")
    idle = make_model("idle", [MIB])
    node.repository.add(idle)
    await node.stage(idle)
    # Both were idle for as long; the one that left shows that the node has looked.
    await node.until(lambda view: {r.version_id: r.state for r in view.residency}[idle.version.version_id] == "DISK")
    assert (await node.states())[served.version.version_id] != "DISK"
