"""A gateway in the test's own loop, over real gRPC, NATS and Redis, between doubles of its neighbours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from rouse_bus import Bus
from rouse_common import telemetry
from rouse_common.rpc.options import channel_options
from rouse_contracts import functions, inference
from rouse_gateway import metrics
from rouse_gateway.app import GatewayApp
from rouse_gateway.config import GatewayConfig
from rouse_testkit.doubles_gateway import Control
from rouse_testkit.front import Front, eventually
from rouse_testkit.running import running

MAX_HELD = 4


@pytest.fixture(scope="session", autouse=True)
def traced() -> None:
    """Trace ids travel only where a process has a tracer."""
    telemetry.configure("gateway")


@pytest.fixture
async def control(nats_url: str) -> AsyncIterator[Control]:
    """The control plane's doubles, publishing over NATS, with a node n0 and no function."""
    control = Control()
    await control.start()
    await control.add_node("n0")
    bus = control.bus = await Bus.connect(nats_url, "test")
    yield control
    await bus.close()
    await control.stop()


@pytest.fixture
def config(control: Control, nats_url: str, redis_url: str, tmp_path: Path) -> GatewayConfig:
    for name in ("logs", "traces"):
        (tmp_path / name).mkdir()
    return GatewayConfig(
        cluster_manager=control.cluster_server.address,
        model_repository=control.repository_server.address,
        scaler=control.scaler_server.address,
        nats=nats_url,
        redis=redis_url,
        log_dir=str(tmp_path / "logs"),
        trace_dir=str(tmp_path / "traces"),
        drain_s=1.0,
        http_listen="127.0.0.1:0",
        auth=False,
        max_held=MAX_HELD,
        service=(f"scaler={control.scaler_server.address}", "nobody=127.0.0.1:1"),
    )


@pytest.fixture
async def front(control: Control, config: GatewayConfig, tmp_path: Path) -> AsyncIterator[Front]:
    """A gateway that serves, and a client's stubs to it."""
    metrics.TABLE_GENERATION.set(0)
    async with running(GatewayApp(config)) as service:
        address = await service.ready()
        async with grpc.aio.insecure_channel(address, options=channel_options(64 << 20)) as channel:
            mesh = functions.FunctionServiceStub(channel)
            http = (await mesh.GetStatus(functions.GetStatusRequest(), timeout=10)).http_address
            front = Front(
                control,
                control.nodes["n0"],
                address,
                http,
                channel,
                mesh,
                inference.GRPCInferenceServiceStub(channel),
                tmp_path,
                lambda: int(metrics.TABLE_GENERATION._value.get()),
                service.stop,
            )
            await eventually(lambda: _is_ready(front), "the gateway is ready")
            yield front


async def _is_ready(front: Front) -> bool:
    answer = await front.models.ServerReady(inference.ServerReadyRequest(), timeout=5)
    return bool(answer.ready)
