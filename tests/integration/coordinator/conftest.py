"""A node to start with whatever functions a test has."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rouse_testkit.artefacts import Staged
from rouse_testkit.coordinator_node import Coordinator, Node, left_in
from rouse_testkit.doubles_coordination import ClusterDouble, GpuServerDouble, NodeRouterDouble


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A folder for sockets, whose paths have to be short."""
    with tempfile.TemporaryDirectory(prefix="rouse-") as folder:
        yield Path(folder) / "run"


@pytest.fixture
async def start(run_dir: Path) -> AsyncIterator[Callable[..., object]]:
    """Starts a node for the given functions; everything is stopped, and must be gone, at the end."""
    async with AsyncExitStack() as stack:

        async def make(*staged: Staged, flags: tuple[str, ...] = (), user: int = 0) -> Node:
            gpu_server, node_router, cluster = GpuServerDouble(*staged), NodeRouterDouble(), ClusterDouble()
            for double in (gpu_server, node_router, cluster):
                await double.start()
                stack.push_async_callback(double.stop)
            coordinator = Coordinator(
                run_dir, "--node-id", "n1", "--cluster-manager", cluster.address,
                "--gpu-server", gpu_server.address, "--node-router", node_router.address,
                "--node-router-link", "127.0.0.1:7999", "--sync-s", "0.3",
                # Functions of these tests write where the test looks, unless it is about what they may do.
                *(() if "--isolation" in flags else ("--isolation", "off")), *flags, user=user,
            )  # fmt: skip
            await coordinator.start()
            stack.push_async_callback(coordinator.stop)
            return Node(coordinator, gpu_server, node_router, cluster)

        yield make
    assert not left_in(run_dir)
