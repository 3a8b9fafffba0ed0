"""The ledger against what the devices say of themselves."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import rouse
from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_linear

pytestmark = pytest.mark.timeout(300)
REQUESTS, SIZE = 60, 512


@pytest.fixture
def metered(tmp_path: Path) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path, devices=("host:gpu0=64MiB", "host:gpu1=64MiB"), metrics=True).start()
    yield mesh
    mesh.stop()


def busy_ms(mesh: Mesh) -> float:
    """What gpu-server counted of all its devices."""
    url = f"http://{mesh.info.metrics_addresses['gpu-server@node0']}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return sum(s.value for s in samples if s.name == "rouse_device_busy_seconds_total") * 1000


def test_the_ledger_adds_up_to_the_devices_busy_time(metered: Mesh, tmp_path: Path) -> None:
    client = metered.client()
    for seed, name in enumerate(("one", "two")):
        client.deploy(write_linear(tmp_path / name, name, SIZE, seed))

    def ask(number: int) -> None:
        client.infer(("one", "two")[number % 2], {"x": np.ones((1, SIZE), np.float32)})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(REQUESTS)))

    def totals() -> dict[str, rouse.types.Usage]:
        return {row.function: row.usage for row in client.usage(by="function")}

    metered.wait_until(lambda: sum(u.requests for u in totals().values()) == REQUESTS, "every request is in the ledger")
    # A lease's work is told to gpu-server when the lease ends, a little after the answer.
    metered.wait_until(
        lambda: busy_ms(metered) == pytest.approx(sum(u.device_ms for u in totals().values()), abs=0.01),
        "the devices were busy for as long as the ledger says",
    )
    metered.wait_until(lambda: all(u.host_ms > 0 for u in totals().values()), "host memory is counted")
    whole = totals()
    assert all(u.billed_ms == pytest.approx(u.device_ms + u.host_ms / 10) for u in whole.values())
    rows = client.usage(by="hour")
    assert sum(row.usage.requests for row in rows) == REQUESTS
    assert sum(row.usage.device_ms for row in rows) == pytest.approx(sum(u.device_ms for u in whole.values()))
