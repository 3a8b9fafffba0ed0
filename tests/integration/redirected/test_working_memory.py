"""What a function on the `rouse` device holds beside its weights: a limit, and what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rouse_runtime.failures import ExecutorLost
from rouse_runtime.redirected import Redirected, native_device
from rouse_testkit.redirected import LAYOUT, SIZE, SPEC, Executor, Function, Host, X, called

MIB = 1 << 20


def grows(
    layer: torch.nn.Module, grow: Callable[[torch.Tensor], torch.Tensor] = lambda x: x.flip(0)
) -> Callable[[dict[str, np.ndarray]], Any]:
    """A function that needs 32 MiB beside its weights for inputs below zero, and little otherwise."""

    def code(inputs: dict[str, np.ndarray]) -> Any:
        x = torch.from_numpy(inputs["x"])
        if inputs["x"][0, 0] < 0:
            x = grow(x[:1].expand(8 * MIB // SIZE, SIZE))[:3]
        return {"y": layer(x)}

    return code


# The result is made by the operator; by the client, for the operator.
@pytest.mark.parametrize(("grow", "who"), [(lambda x: x.flip(0), "aten::flip"), (lambda x: x.repeat(1, 1), "")])
async def test_over_its_limit_a_request_gets_the_error_and_the_next_one_is_served(
    grow: Callable[[torch.Tensor], torch.Tensor], who: str, host: Host, executor: Executor
) -> None:
    layer = host.linear()
    want = called(Function(grows(layer, grow), [layer]), x=X)["y"]
    function = Redirected(Function(grows(layer, grow), [layer]), host.weights, LAYOUT, native_device(), SPEC)
    await executor.attach(function, limit_bytes=8 * MIB)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            called(function, x=-X)
        assert who in str(caught.value)
        assert "`working_memory_bytes`" in str(caught.value)
        assert f"of at most {8 * MIB} beside the weights" in str(caught.value)
        np.testing.assert_array_equal(called(function, x=X)["y"], want)
    (model,) = (await executor.process.client.describe(10)).models
    assert 0 < model.most_working_bytes <= 8 * MIB
    assert executor.process.incarnation == 1
    function.disconnect()


async def test_what_a_version_held_is_known_to_the_byte_and_given_back_with_its_session(
    host: Host, executor: Executor
) -> None:
    layer, client = host.linear(), executor.process.client
    function = Redirected(Function(grows(layer), [layer]), host.weights, LAYOUT, native_device(), SPEC)
    await executor.attach(function)
    called(function, x=X)
    little = (await client.most_working_bytes(10))["v"]
    assert 0 < little < MIB
    called(function, x=-X)
    described = await client.describe(10)
    (model,), (session,) = described.models, described.sessions
    # 32 MiB in one block, its header, and what was there before.
    assert 32 * MIB < model.most_working_bytes <= 33 * MIB + little
    assert model.most_working_bytes == session.most_working_bytes
    # It is kept for the next request.
    assert model.working_bytes == model.most_working_bytes
    called(function, x=-X)
    assert (await client.most_working_bytes(10))["v"] == model.most_working_bytes
    function.disconnect()
    await client.close_session("s1", 10)
    (after,) = (await client.describe(10)).models
    assert (after.working_bytes, after.most_working_bytes) == (0, model.most_working_bytes)


@pytest.mark.parametrize("limit_bytes", [1, 4095])
async def test_a_limit_that_is_too_small_to_begin_with_ends_the_session_and_not_the_executor(
    limit_bytes: int, host: Host, executor: Executor
) -> None:
    layer = host.linear()
    code = Function(lambda inputs: {"y": layer(torch.from_numpy(inputs["x"]))}, [layer])
    function = Redirected(code, host.weights, LAYOUT, native_device(), SPEC)

    async def attached_and_called() -> None:
        await executor.attach(function, limit_bytes=limit_bytes)
        called(function, x=X)

    with pytest.raises((ExecutorLost, RuntimeError)):
        await attached_and_called()
    function.disconnect()
    await executor.attach(function)
    called(function, x=X)
    assert executor.process.incarnation == 1
    function.disconnect()
