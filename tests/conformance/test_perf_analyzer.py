"""perf_analyzer, unchanged, against a whole mesh: it works, it counts what we count, it measures what we measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from rouse_testkit.fetching import Unobtainable
from rouse_testkit.mesh import Mesh
from rouse_testkit.outside import deploy_examples, run_client
from rouse_testkit.perf_analyzer import Figures, PerfAnalyzer, obtain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLOSED_LOOP = Path(__file__).with_name("clients") / "closed_loop.py"
# One window of so many requests is enough: with -s 1000 any window is stable.
ARGUMENTS = ("--measurement-mode", "count_windows", "--measurement-request-count", "200", "-s", "1000", "-r", "3")
ROUNDS = 5
# Two clients, one after the other, on a machine that others use as well.
NOISE = 2.0


@pytest.fixture(scope="module")
def analyzer() -> PerfAnalyzer:
    try:
        return obtain()
    except Unobtainable as error:
        pytest.skip(f"perf_analyzer cannot be had here: {error}")


@pytest.fixture(scope="module")
def served(mesh: Mesh) -> Mesh:
    deploy_examples(mesh.client(), "simple", "simple_identity")
    return mesh


def address(mesh: Mesh, protocol: str) -> str:
    return mesh.gateway_address if protocol == "grpc" else mesh.http_address


def check_counts(figures: Figures, rows: int = 1, concurrency: int = 1) -> None:
    assert figures.requests >= 200
    # Requests that are under way when one of its three windows begins or ends count on one side alone.
    edges = 3 * concurrency
    assert abs(figures.server_requests - figures.requests) <= edges, "the server counts other requests than the client"
    assert figures.server_inferences == figures.server_requests * rows
    assert 0 < figures.server_executions <= figures.server_requests
    parts = figures.queue + figures.compute_input + figures.compute_infer + figures.compute_output
    assert parts > 0, "the server tells no times"
    assert figures.compute_infer > 0


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize(("rows", "concurrency"), [(1, 1), (4, 4)])
def test_it_counts_what_the_mesh_counts(
    served: Mesh, analyzer: PerfAnalyzer, protocol: str, rows: int, concurrency: int
) -> None:
    arguments = (*ARGUMENTS, "-b", str(rows), "--concurrency-range", f"{concurrency}:{concurrency}")
    check_counts(analyzer.measure("simple", address(served, protocol), protocol, *arguments), rows, concurrency)


def test_it_streams_and_shares_memory(served: Mesh, analyzer: PerfAnalyzer) -> None:
    for extra in (("--streaming",), ("--shared-memory", "system", "--output-shared-memory-size", "256")):
        check_counts(analyzer.measure("simple", served.gateway_address, "grpc", *ARGUMENTS, *extra))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_it_measures_what_a_client_of_ours_measures(served: Mesh, analyzer: PerfAnalyzer, protocol: str) -> None:
    """p50 of one closed-loop client, in turns; the smallest ratio of a few rounds, for nothing but noise varies."""
    ratios = []
    for _ in range(ROUNDS):
        ours = float(run_client(CLOSED_LOOP, protocol, address(served, protocol), "300"))
        theirs = analyzer.measure("simple", address(served, protocol), protocol, *ARGUMENTS).p50
        ratios.append(max(ours / theirs, theirs / ours))
        if ratios[-1] < NOISE:
            return
    pytest.fail(f"p50 of perf_analyzer and of tritonclient differ by factors of {[round(r, 2) for r in ratios]}")
