"""What is kept of an answer, what may have run, what is the same request."""

from __future__ import annotations

import pytest

from rouse_common.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RouseError,
    Unavailable,
)
from rouse_contracts import cluster, functions
from rouse_gateway.asked import Answer, Call
from rouse_gateway.repetitions import digest_of, may_have_run, pack, unpack
from rouse_gateway.state import Version, index
from rouse_gateway.wire import TensorView


@pytest.mark.parametrize(
    ("error", "ran"),
    [
        (InvalidArgument("BAD_INPUT", "", node="n"), False),
        (NotFound("FUNCTION_NOT_FOUND", ""), False),
        (ResourceExhausted("QUEUE_FULL", "", node="n"), False),
        (Unavailable("NOT_READY", ""), False),
        (Unavailable("NO_INSTANCE", "", node="n"), False),
        (Unavailable("EXECUTOR_LOST", "", node="n"), True),
        (Unavailable("NODE_LOST", "", node="n"), True),
        (Unavailable("NEVER_HEARD_OF", "", node="n"), True),
        (DeadlineExceeded("DEADLINE_EXCEEDED", ""), False),
        (DeadlineExceeded("DEADLINE_EXCEEDED", "", node="n"), True),
        (Internal("FUNCTION_RAISED", ""), True),
        (Cancelled("CANCELLED", ""), True),
    ],
)
def test_only_what_surely_did_not_run_may_run_again(error: RouseError, ran: bool) -> None:
    assert may_have_run(error) is ran


def version(number: int = 1) -> Version:
    contract = functions.FunctionVersion(version_id=f"v{number}", version=number)
    route = cluster.FunctionRoute(name="f", versions=[contract], active_version_id=contract.version_id)
    return index(cluster.RoutingTable(functions=[route])).version("f", "")


CALL = Call(
    "f", "", [TensorView("x", "FP32", (1,), b"\x00\x00\x80?"), TensorView("a", "BOOL", (1,), b"\x01")], ["y"], 1.0
)


def test_the_same_request_is_one_with_the_same_tensors_and_outputs() -> None:
    x, a = CALL.inputs
    same = (
        CALL._replace(inputs=[a, x], timeout_s=9.0, tenant="t", idempotency_key="k"),
        CALL._replace(inputs=[TensorView("x", "FP32", (1,), memoryview(b"\x00\x00\x80?")), a]),
    )
    others = (
        CALL._replace(number="2"),
        CALL._replace(output_names=[]),
        CALL._replace(inputs=[x]),
        CALL._replace(inputs=[x, TensorView("a", "BOOL", (1,), b"\x00")]),
        CALL._replace(inputs=[x, TensorView("b", "BOOL", (1,), b"\x01")]),
        CALL._replace(inputs=[TensorView("x", "INT32", (1,), x.data), a]),
        CALL._replace(inputs=[TensorView("x", "FP32", (1, 1), x.data), a]),
    )
    assert {digest_of(call) for call in same} == {digest_of(CALL)}
    assert len({digest_of(call) for call in (CALL, *others)}) == len(others) + 1


def test_answers_and_errors_come_back_as_they_were() -> None:
    outputs = [TensorView("y", "FP32", (2, 1), b"01234567"), TensorView("empty", "FP32", (0,), b"")]
    answer = Answer(version(), outputs, functions.Timings(execute_ms=1.5), "id", "n0", "gpu0")
    found = unpack(pack(answer), version(2), {"1": version()}.get)
    assert (found.version.number, found.request_id, found.node_id, found.device) == ("1", "id", "n0", "gpu0")
    assert found.timings == answer.timings
    assert [(t.name, t.shape, bytes(t.data)) for t in found.outputs] == [
        (t.name, t.shape, bytes(t.data)) for t in outputs
    ]
    # Its version is gone by now.
    assert unpack(pack(answer), version(2), lambda _: None).version.number == "1"
    error = Unavailable("EXECUTOR_LOST", "it went away", retry_after_s=2.0, node="n0")
    with pytest.raises(Unavailable) as caught:
        unpack(pack(error), version(), lambda _: None)
    assert (caught.value.reason, caught.value.message) == (error.reason, error.message)
    assert caught.value.metadata == {"node": "n0"}
    for damaged in (b"", b"\x01\xff\xff", b"\x02\xff\xff"):
        with pytest.raises(Internal) as broken:
            unpack(damaged, version(), lambda _: None)
        assert broken.value.reason == "BAD_ANSWER"
