"""Requests for functions that sleep: held, woken together, let go by deadline, failure and cancellation."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from rouse_common.errors import FailedPrecondition, Unavailable
from rouse_contracts import functions, inference, node
from rouse_gateway import metrics
from rouse_testkit.doubles_gateway import echo
from rouse_testkit.front import Front, eventually, floats, refused

Code = grpc.StatusCode
MAX_HELD = 4  # as the gateway under test is told


async def held(count: int) -> None:
    await eventually(lambda: metrics.HELD._value.get() == count, f"{count} requests are held")


async def never(name: str, version_id: str) -> None:
    """A wake-up that is accepted and leads to nothing yet."""


async def test_a_sleeping_function_is_woken_by_its_request(front: Front) -> None:
    front.control.add_function("f")
    await front.publish()
    answer = await front.infer("f", 5.0)
    assert floats(answer.outputs[0]) == [5.0]
    assert answer.timings.held_ms > 0
    assert answer.timings.held_ms <= answer.timings.total_ms
    assert front.control.wakes == [("f", "")]
    again = await front.infer("f", 5.0)
    assert again.timings.held_ms == 0
    assert front.control.wakes == [("f", "")]


async def taped(front: Front, name: str) -> None:
    """A sleeping function that the only node has tapes of."""
    front.control.add_function(name, weights=1)
    front.control.residency[f"{name}-1", front.node.node_id] = "HOST"
    front.control.tapes[f"{name}-1", front.node.node_id] = 2
    await front.publish()


async def test_a_sleeping_function_with_tapes_is_answered_and_not_woken(front: Front) -> None:
    await taped(front, "f")
    answer = await front.infer("f", 5.0)
    assert floats(answer.outputs[0]) == [5.0]
    assert answer.timings.held_ms == 0
    assert front.control.wakes == []
    assert [request.tapes_only for request in front.node.requests] == [True]
    front.control.set_ready("f", front.node.node_id)
    await front.publish()
    await front.infer("f", 5.0)
    assert [request.tapes_only for request in front.node.requests] == [True, False]


async def test_what_tapes_do_not_answer_wakes_the_function_and_is_executed_once(front: Front) -> None:
    await taped(front, "f")

    async def no_tape(request: node.InferRequest) -> node.InferResponse:
        if request.tapes_only:
            raise Unavailable("NO_INSTANCE", "no tape answers it")
        return await echo(request)

    front.node.behaviour = no_tape
    answer = await front.infer("f", 5.0)
    assert floats(answer.outputs[0]) == [5.0]
    assert front.control.wakes == [("f", "")]
    assert [request.tapes_only for request in front.node.requests] == [True, False]
    assert len({request.request_id for request in front.node.requests}) == 1


async def test_a_sequence_wakes_a_function_that_has_tapes(front: Front) -> None:
    await taped(front, "f")
    options = functions.RequestOptions(sequence=functions.Sequence(id="s", start=True))
    await front.infer("f", 5.0, options=options)
    assert front.control.wakes == [("f", "")]
    assert [request.tapes_only for request in front.node.requests] == [False]


async def test_requests_that_wait_together_share_one_wake_up(front: Front) -> None:
    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    calls = [asyncio.ensure_future(front.infer("f", float(i))) for i in range(MAX_HELD)]
    await held(MAX_HELD)
    await front.control.start_instance("f", "f-1")
    answers = await asyncio.gather(*calls)
    assert [floats(a.outputs[0]) for a in answers] == [[float(i)] for i in range(MAX_HELD)]
    assert front.control.wakes == [("f", "")]
    await held(0)


async def test_functions_wake_independently(front: Front) -> None:
    front.control.add_function("f")
    front.control.add_function("g")
    front.control.on_wake = never
    await front.publish()
    f, g = asyncio.ensure_future(front.infer("f", 1.0)), asyncio.ensure_future(front.infer("g", 2.0))
    await held(2)
    await front.control.start_instance("g", "g-1")
    assert floats((await g).outputs[0]) == [2.0]
    assert not f.done()
    await front.control.start_instance("f", "f-1")
    assert floats((await f).outputs[0]) == [1.0]


async def test_an_older_version_is_woken_by_its_id(front: Front) -> None:
    front.control.add_function("f")
    front.control.add_function("f")
    await front.publish()
    answer = await front.infer("f", 1.0, version="1")
    assert answer.version == "1"
    assert front.control.wakes == [("f", "f-1")]
    assert front.node.requests[0].version_id == "f-1"


async def test_a_broken_active_version_does_not_keep_an_older_one_asleep(front: Front) -> None:
    front.control.add_function("f")
    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    await front.control.set_state("f", functions.FUNCTION_STATE_FAILED, "version 2 cannot be loaded")
    await front.settled()
    call = asyncio.ensure_future(front.infer("f", 1.0, version="1"))
    await held(1)
    await front.publish()  # still FAILED
    front.control.set_ready("f", "n0", "f-1")
    await front.publish()
    assert (await call).version == "1"


async def test_more_requests_than_may_be_held_are_refused_with_a_time_to_retry(front: Front) -> None:
    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    calls = [asyncio.ensure_future(front.infer("f", 1.0)) for _ in range(MAX_HELD)]
    await held(MAX_HELD)
    code, details, text = await refused(front.infer("f", 1.0))
    assert (code, details.reason) == (Code.RESOURCE_EXHAUSTED, "HOLD_FULL")
    assert details.retry_after_s is not None
    assert details.retry_after_s > 0
    assert details.metadata["function"] == "f"
    assert "4" in text
    await front.control.start_instance("f", "f-1")
    await asyncio.gather(*calls)
    await front.infer("f", 1.0)


async def test_ready_functions_are_served_while_no_place_to_hold_is_left(front: Front) -> None:
    front.control.add_function("f")
    front.control.add_function("ready", nodes=["n0"])
    front.control.on_wake = never
    await front.publish()
    calls = [asyncio.ensure_future(front.infer("f", 1.0)) for _ in range(MAX_HELD)]
    await held(MAX_HELD)
    await front.infer("ready", 1.0)
    for call in calls:
        call.cancel()
    await held(0)


async def test_a_deadline_releases_the_request_and_says_what_it_waited_for(front: Front) -> None:
    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    await front.control.set_state("f", functions.FUNCTION_STATE_WAKING, "instance i is PENDING")
    await front.settled()
    code, details, text = await refused(
        front.model_infer("f", 1.0, parameters={"timeout": inference.InferParameter(int64_param=150_000)}, timeout=10)
    )
    assert (code, details.metadata["function"]) == (Code.DEADLINE_EXCEEDED, "f")
    assert "WAKING" in text
    assert "instance i is PENDING" in text
    await held(0)
    await front.control.start_instance("f", "f-1")
    await front.infer("f", 1.0)


async def test_a_client_that_cancels_gives_its_place_back(front: Front) -> None:
    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    calls = [asyncio.ensure_future(front.infer("f", 1.0)) for _ in range(2)]
    await held(2)
    calls[0].cancel()
    await held(1)
    await front.control.start_instance("f", "f-1")
    assert floats((await calls[1]).outputs[0]) == [1.0]
    assert len(front.node.requests) == 1


async def test_a_function_that_fails_to_load_says_why_to_all_who_wait(front: Front) -> None:
    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    calls = [asyncio.ensure_future(refused(front.infer("f", 1.0))) for _ in range(3)]
    await held(3)
    await front.control.set_state("f", functions.FUNCTION_STATE_FAILED, "ModuleNotFoundError: No module named 'x'")
    for code, details, text in await asyncio.gather(*calls):
        assert (code, details.reason, details.metadata["function"]) == (Code.FAILED_PRECONDITION, "LOAD_FAILED", "f")
        assert "ModuleNotFoundError" in text
    assert len(front.control.wakes) == 1


async def test_a_failure_of_an_earlier_wake_up_does_not_fail_a_later_request(front: Front) -> None:
    front.control.add_function("f")
    await front.publish()
    await front.control.set_state("f", functions.FUNCTION_STATE_FAILED, "it was out of memory")
    await front.settled()
    answer = await front.infer("f", 1.0)
    assert floats(answer.outputs[0]) == [1.0]


async def test_a_function_that_fails_again_fails_the_later_request(front: Front) -> None:
    front.control.add_function("f")

    async def fail(name: str, version_id: str) -> None:
        await front.control.set_state(name, functions.FUNCTION_STATE_FAILED, f"attempt {len(front.control.wakes)}")

    front.control.on_wake = fail
    await front.publish()
    for attempt in (1, 2):
        code, _, text = await refused(front.infer("f", 1.0))
        assert code is Code.FAILED_PRECONDITION
        assert f"attempt {attempt}" in text


async def test_a_scaler_that_is_away_for_a_moment_is_asked_again(front: Front) -> None:
    front.control.add_function("f")
    await front.publish()
    attempts = 0

    async def third_time(name: str, version_id: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise Unavailable("NO_NODE", "no node is there yet")
        await front.control.start_instance(name, version_id)

    front.control.on_wake = third_time
    assert floats((await front.infer("f", 1.0)).outputs[0]) == [1.0]
    assert attempts == 3


async def test_what_the_scaler_refuses_for_good_is_answered_at_once(front: Front) -> None:
    front.control.add_function("f")
    await front.publish()

    async def too_large(name: str, version_id: str) -> None:
        raise FailedPrecondition("MODEL_TOO_LARGE", "f needs 4 GiB, the largest device has 1 GiB", function=name)

    front.control.on_wake = too_large
    code, details, text = await refused(front.infer("f", 1.0))
    assert (code, details.reason) == (Code.FAILED_PRECONDITION, "MODEL_TOO_LARGE")
    assert "4 GiB" in text
    assert len(front.control.wakes) == 1


async def test_a_function_deleted_while_it_wakes_is_not_found(front: Front) -> None:
    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    call = asyncio.ensure_future(refused(front.infer("f", 1.0)))
    await held(1)
    await front.mesh.DeleteFunction(functions.DeleteFunctionRequest(name="f"), timeout=5)
    code, details, _ = await call
    assert (code, details.reason) == (Code.NOT_FOUND, "FUNCTION_NOT_FOUND")


async def test_an_instance_that_is_gone_before_the_table_says_so_is_woken_again(front: Front) -> None:
    front.control.add_function("f", nodes=["n0"])
    await front.publish()
    refusing = True
    echo = front.node.behaviour

    async def gone_once(request: node.InferRequest) -> node.InferResponse:
        nonlocal refusing
        if refusing:
            refusing = False
            raise Unavailable("NO_INSTANCE", "the instance has just ended")
        return await echo(request)

    front.node.behaviour = gone_once
    call = asyncio.ensure_future(front.infer("f", 6.0))
    await front.node.arrived.wait()
    await front.control.set_state("f", functions.FUNCTION_STATE_SLEEPING)
    answer = await call
    assert floats(answer.outputs[0]) == [6.0]
    assert len(front.node.requests) == 2


async def test_waking_waits_until_the_function_is_ready(front: Front) -> None:
    front.control.add_function("f")
    front.control.on_wake = never
    await front.publish()
    call = asyncio.ensure_future(front.mesh.WakeFunction(functions.WakeFunctionRequest(name="f"), timeout=10))
    await held(1)
    assert not call.done()
    await front.control.start_instance("f", "f-1")
    answer = await call
    assert (answer.function.name, answer.function.state) == ("f", functions.FUNCTION_STATE_READY)
    assert answer.function.ready_instances == 1
    again = await front.mesh.WakeFunction(functions.WakeFunctionRequest(name="f"), timeout=10)
    assert again == answer
    assert len(front.control.wakes) == 1


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [("f", Code.FAILED_PRECONDITION, "LOAD_FAILED"), ("nobody", Code.NOT_FOUND, "FUNCTION_NOT_FOUND")],
)
async def test_waking_what_cannot_wake_says_why(front: Front, name: str, code: grpc.StatusCode, reason: str) -> None:
    front.control.add_function("f")

    async def fail(name: str, version_id: str) -> None:
        await front.control.set_state(name, functions.FUNCTION_STATE_FAILED, "no")

    front.control.on_wake = fail
    await front.publish()
    got = await refused(front.mesh.WakeFunction(functions.WakeFunctionRequest(name=name), timeout=10))
    assert (got[0], got[1].reason) == (code, reason)
