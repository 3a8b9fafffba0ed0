"""What others see of a swap: spans, metrics, log lines, the description."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from rouse_common import telemetry
from rouse_testkit.gpu import make_model

if TYPE_CHECKING:
    from conftest import Node

KIB = 1024


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from rouse_gpu_server.logic import leasing

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    monkeypatch.setattr(telemetry, "TRACER", tracer)
    monkeypatch.setattr(leasing, "TRACER", tracer)
    yield exporter
    provider.shutdown()


def children(spans: InMemorySpanExporter, parent: ReadableSpan) -> list[ReadableSpan]:
    found = [
        s for s in spans.get_finished_spans() if s.parent is not None and s.parent.span_id == parent.context.span_id
    ]
    return sorted(found, key=lambda s: s.start_time or 0)


def acquires(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [s for s in spans.get_finished_spans() if s.name == "Acquire"]


async def test_a_swap_is_a_span_of_every_request_that_waited_for_it(node: Node, spans: InMemorySpanExporter) -> None:
    await node.start()
    a, b = make_model("a", [600 * KIB]), make_model("b", [600 * KIB])
    await node.deploy(a)
    await node.deploy(b, instances=2)
    await node.use(a)
    spans.clear()
    await asyncio.gather(node.use(b), node.use(b))
    for acquire in acquires(spans):
        names = [span.name for span in children(spans, acquire)]
        assert names[:2] == ["wait", "swap"]
        swap = children(spans, acquire)[1]
        assert swap.attributes is not None
        assert swap.attributes["device"] == "d0"
        assert swap.attributes["bytes"] == 600 * KIB
        assert swap.attributes["source"] == "host"
        assert swap.attributes["evicted"] == "a"
        assert "1 of 1 resting models leave" in str(swap.attributes["reason"])
    spans.clear()
    await node.use(b)
    (acquire,) = acquires(spans)
    assert [span.name for span in children(spans, acquire)] == ["wait"]


async def test_times_of_wait_and_swap_add_up(node: Node, spans: InMemorySpanExporter) -> None:
    await node.start()
    model = make_model("a", [900 * KIB])
    await node.deploy(model)
    lease = await node.use(model)
    (acquire,) = acquires(spans)
    parts = children(spans, acquire)
    total = sum((s.end_time or 0) - (s.start_time or 0) for s in parts) / 1e6
    assert lease.wait_ms + lease.swap_ms == pytest.approx(total, abs=0.6)
    for before, after in itertools.pairwise(parts):
        assert before.end_time == after.start_time


async def test_a_wait_in_vain_is_a_failed_span(node: Node, spans: InMemorySpanExporter) -> None:
    await node.start()
    model = make_model("a", [100 * KIB])
    await node.deploy(model)
    held = await node.acquire(model)
    spans.clear()
    waiting = asyncio.create_task(node.acquire(model))
    await node.has_waiting(1)
    waiting.cancel()
    await node.has_waiting(0)
    await node.release(held)
    (wait,) = [s for s in spans.get_finished_spans() if s.name == "wait"]
    assert "Cancelled" in str(wait.status.description)


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_metrics_count_misses_loads_and_evictions(node: Node) -> None:
    await node.start(device=("host:m0=1MiB",))
    a, b = make_model("metric-a", [600 * KIB]), make_model("metric-b", [600 * KIB])
    await node.deploy(a)
    await node.deploy(b)
    for model in (a, b, b, a):
        await node.use(model)
    assert metric("rouse_cache_miss_total", function="metric-a") == 2
    assert metric("rouse_cache_miss_total", function="metric-b") == 1
    assert metric("rouse_loadmodel_seconds_count", device="m0") == 3
    assert metric("rouse_loadmodel_bytes_total", device="m0") == 3 * 600 * KIB
    assert metric("rouse_model_evicted_total", device="m0") == 2
    assert metric("rouse_age_at_eviction_seconds_count", device="m0") == 2
    assert metric("rouse_instance_capacity_bytes", device="m0") == 1024 * KIB
    assert metric("rouse_instance_used_bytes", device="m0") == 600 * KIB
    assert metric("rouse_models_loaded", device="m0") == 1
    assert metric("rouse_device_busy_seconds_total", device="m0") == pytest.approx(0.004)
    assert metric("rouse_tier_used_bytes", tier="host") == 1200 * KIB


async def test_swaps_and_evictions_are_logged_with_their_reason_and_leases_are_not(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await node.start()
    a, b = make_model("a", [600 * KIB]), make_model("b", [600 * KIB])
    await node.deploy(a)
    await node.deploy(b)
    await node.use(a)
    caplog.clear()
    await node.use(b)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("rouse_gpu_server")]
    (evicted,) = [line for line in lines if line.startswith("evicted")]
    assert "function=a " in evicted
    assert "reason=room for function=b: least recently used" in evicted
    (swapped,) = [line for line in lines if line.startswith("swapped in")]
    assert "function=b " in swapped
    assert "evicted=a" in swapped
    caplog.clear()
    await node.use(b)
    # What a model weighs may be known now, which is said once.
    ours = [r for r in caplog.records if r.name.startswith("rouse_gpu_server")]
    assert not [r for r in ours if not r.name.endswith("weighing")]


async def test_every_row_says_why_and_since_when(node: Node) -> None:
    await node.start()
    model = make_model("a", [100 * KIB])
    await node.deploy(model)
    lease = await node.acquire(model)
    (row,) = (await node.describe()).residency
    assert row.state == "EXECUTING"
    assert "r-a" in row.reason
    assert row.since.seconds > 1_600_000_000
    assert row.size_bytes == 100 * KIB
    device = (await node.describe()).devices[0]
    assert device.executing == "a"
    assert device.residents[0] == row
    assert device.kind == "host"
    await node.release(lease)
    (row,) = (await node.describe()).residency
    assert row.state == "DEVICE"
    assert row.reason.startswith("released after 1.0 ms of work; brought for request 1: d0 from the host: ")
