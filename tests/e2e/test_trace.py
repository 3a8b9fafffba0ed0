"""One request is one trace over gateway, node-router, gpu-server and executor."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rouse_testkit.mesh import Mesh
from rouse_testkit.models import write_linear


def test_the_spans_of_a_request_share_a_trace_and_have_the_right_parents(mesh: Mesh, tmp_path: Path) -> None:
    client = mesh.client()
    client.deploy(write_linear(tmp_path / "f", "traced", 128, 0))
    result = client.infer("traced", {"x": np.ones((1, 128), np.float32)})
    spans = client.trace(result.trace_id)
    assert {s.trace_id for s in spans} == {result.trace_id}
    by_id = {s.span_id: s for s in spans}

    def the(service: str, name: str):
        found = [s for s in spans if (s.service, s.name) == (service, name)]
        assert len(found) == 1, f"{service}/{name} in {[(s.service, s.name) for s in spans]}"
        return found[0]

    root = the("gateway", "Infer")
    route = the("node-router", "Infer")
    queue = the("node-router", "queue")
    acquire = the("gpu-server", "Acquire")
    swap = the("gpu-server", "swap")
    run = the("executor", "Execute")
    execute = the("executor", "execute")

    def ancestors(span) -> list:
        chain = []
        while span.parent_span_id in by_id:
            span = by_id[span.parent_span_id]
            chain.append(span)
        return chain

    assert root.parent_span_id not in by_id
    assert root in ancestors(route)
    for child in (queue, acquire, run):
        assert route in ancestors(child), child.name
    assert acquire in ancestors(swap)
    assert run in ancestors(execute)
    for span in spans:
        assert span.start_unix_nanos <= span.end_unix_nanos
        for above in ancestors(span):
            assert above.start_unix_nanos <= span.start_unix_nanos
    # Acquire itself ends after its answer has left, which may be read before that.
    assert swap.end_unix_nanos <= run.start_unix_nanos, "computing starts when the lease is there"
    assert swap.attributes["device"] == "gpu0"
    client.delete("traced")
